//! Command-line arguments.

use std::fmt::Write;

use crate::sections;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    /// Measure all sections, or one.
    Summary {
        only: Option<String>,
    },
    /// Run one loop, so that callgrind can count its instructions.
    Loop {
        name: LoopName,
        sinks: u64,
        items: u64,
    },
}

/// The loops whose instructions can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopName {
    /// A bare loop routes each item.
    Bare,
    /// A demux routes each item.
    Demux,
    /// A demux sends a copy of each item to each member of a group.
    Copy,
    /// An item is sent to a bare channel when it has room.
    WakeBare,
    /// A sink that the input is blocked on is woken.
    Wake,
    /// A sink with a queued item is woken.
    WakeQueued,
    /// A demux with nothing set writes lines from a tokio channel to TCP clients.
    Tcp,
}

impl LoopName {
    const ALL: [(&str, Self); 7] = [
        ("bare", Self::Bare),
        ("demux", Self::Demux),
        ("copy", Self::Copy),
        ("wake-bare", Self::WakeBare),
        ("wake", Self::Wake),
        ("wake-queued", Self::WakeQueued),
        ("tcp", Self::Tcp),
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
    args.next().map_or(Ok(task), |extra| Err(format!("unexpected argument: {extra}")))
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

fn number(what: &str, text: Option<&str>, max: u64) -> Result<u64, String> {
    text.and_then(|text| text.parse().ok())
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| unexpected("--loop", &format!("{what}, a number from 1 to {max}"), text))
}

fn unexpected(after: &str, expected: &str, found: Option<&str>) -> String {
    match found {
        None => format!("{after} needs {expected}"),
        Some(found) => format!("{after} needs {expected}, not {found}"),
    }
}

pub(crate) fn help() -> String {
    let mut help = "\
Measures stream-demux beside its alternatives and a bare loop, checks that each item arrives, and
prints a table. Exits with 1 if a figure is beyond its limit. Without arguments, measures all
sections in less than ten minutes, and writes benches/figures.svg and the table in
benches/README.md.

    cargo run --profile bench -p figures                   all sections
    cargo run --profile bench -p figures -- --only NAME    one section
    cargo run --profile bench -p figures -- --loop NAME SINKS ITEMS
                                    only one loop, to count its instructions: bare or demux
                                    (routing), copy (to a group), wake-bare, wake, wake-queued;
                                    or tcp (lines to up to 1,000 clients), for a profiler

Sections:
"
    .to_owned();
    for section in sections::ALL {
        let _ = writeln!(help, "    {:14}{}", section.name, section.about);
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
    fn valid_arguments_are_parsed() {
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
    fn errors_name_the_argument() {
        for (args, name) in [
            ("--fast", "--fast"),
            ("--only", "route"),
            ("--only rout", "rout"),
            ("--loop", "bare, demux, copy, wake-bare, wake, wake-queued, tcp"),
            ("--loop sleep 3 1", "not sleep"),
            ("--loop demux", "SINKS"),
            ("--loop demux 0 1", "not 0"),
            ("--loop demux 3 x", "not x"),
            ("--only route more", "more"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(name), "{args}: {error}");
        }
    }
}
