//! What can be asked for on the command line.

use std::fmt::Write;

use crate::sections;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    /// Measure all, or one section.
    Summary {
        only: Option<String>,
    },
    /// One loop and nothing else, so that something else can count its instructions: with so many
    /// sinks, so many items.
    Loop {
        name: LoopName,
        sinks: u64,
        items: u64,
    },
}

/// What is in a loop that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopName {
    /// An item is routed by a bare loop.
    Bare,
    /// An item is routed by a demux.
    Demux,
    /// A copy of an item is sent to a member of a group.
    Copy,
    /// A bare channel is sent to, once it has room.
    WakeBare,
    /// A sink is woken, which the input waits for.
    Wake,
    /// A sink is woken, which has an item queued.
    WakeQueued,
}

impl LoopName {
    const ALL: [(&str, Self); 6] = [
        ("bare", Self::Bare),
        ("demux", Self::Demux),
        ("copy", Self::Copy),
        ("wake-bare", Self::WakeBare),
        ("wake", Self::Wake),
        ("wake-queued", Self::WakeQueued),
    ];
}

pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Task, String> {
    let mut args = args.into_iter();
    let task = match args.next().as_deref() {
        None => Task::Summary { only: None },
        Some("-h" | "--help") => return Ok(Task::Help),
        Some("--only") => Task::Summary { only: Some(section(args.next())?) },
        Some("--loop") => {
            let name = loop_name(args.next().as_deref())?;
            let sinks = number("SINKS", args.next().as_deref(), 1 << 24)?;
            let items = number("ITEMS", args.next().as_deref(), 1 << 40)?;
            Task::Loop { name, sinks, items }
        }
        Some(other) => return Err(format!("unknown argument: {other}")),
    };
    args.next().map_or(Ok(task), |extra| Err(format!("one argument too many: {extra}")))
}

fn section(name: Option<String>) -> Result<String, String> {
    let names = || sections::ALL.iter().map(|section| section.name).collect::<Vec<_>>();
    name.clone().filter(|name| names().contains(&name.as_str())).ok_or_else(|| {
        unexpected("--only", &format!("one of {}", names().join(", ")), name.as_deref())
    })
}

fn loop_name(text: Option<&str>) -> Result<LoopName, String> {
    let found = LoopName::ALL.into_iter().find(|(name, _)| Some(*name) == text);
    let names = || LoopName::ALL.map(|(name, _)| name).join(", ");
    found
        .map(|(_, name)| name)
        .ok_or_else(|| unexpected("--loop", &format!("one of {}", names()), text))
}

fn number(what: &str, text: Option<&str>, most: u64) -> Result<u64, String> {
    text.and_then(|text| text.parse().ok())
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| unexpected("--loop", &format!("{what}, a number from 1 to {most}"), text))
}

fn unexpected(after: &str, wanted: &str, got: Option<&str>) -> String {
    match got {
        None => format!("{after} needs {wanted}"),
        Some(got) => format!("{after} needs {wanted}, not {got}"),
    }
}

pub(crate) fn help() -> String {
    let mut help = "\
Measures stream-demux beside what one would use instead and the bare limit, checks that each item
arrived, and prints one table. Exits with 1 if a figure is not what it must be. Without arguments all
is measured, in less than five minutes, and benches/figures.md and benches/figures.svg are written.

    cargo run --profile bench -p figures                   all of it
    cargo run --profile bench -p figures -- --only NAME    one section
    cargo run --profile bench -p figures -- --loop NAME SINKS ITEMS
                                    only one loop, for counting its instructions: bare or demux,
                                    which route; copy, to a group; wake-bare, wake or wake-queued

Sections:
"
    .to_owned();
    for section in sections::ALL {
        let _ = writeln!(help, "    {:14}{}", section.name, section.asks);
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Task, String> {
        parse(args.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_right_is_understood() {
        assert_eq!(parsed(""), Ok(Task::Summary { only: None }));
        assert_eq!(parsed("--only route"), Ok(Task::Summary { only: Some("route".into()) }));
        assert_eq!(
            parsed("--loop bare 3 10"),
            Ok(Task::Loop { name: LoopName::Bare, sinks: 3, items: 10 })
        );
        assert_eq!(
            parsed("--loop wake-queued 9 8"),
            Ok(Task::Loop { name: LoopName::WakeQueued, sinks: 9, items: 8 })
        );
        assert_eq!(parsed("--help"), Ok(Task::Help));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (args, named) in [
            ("--fast", "--fast"),
            ("--only", "route"),
            ("--only rout", "rout"),
            ("--loop", "bare, demux, copy, wake-bare, wake, wake-queued"),
            ("--loop sleep 3 1", "not sleep"),
            ("--loop demux", "SINKS"),
            ("--loop demux 0 1", "not 0"),
            ("--loop demux 3 x", "not x"),
            ("--only route more", "more"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(named), "{args}: {error}");
        }
    }
}
