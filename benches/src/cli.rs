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
    /// Send lines to TCP clients with nothing set, for a profiler.
    Tcp {
        clients: u64,
        lines: u64,
    },
}

pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Task, String> {
    let mut args = args.into_iter();
    let task = match args.next().as_deref() {
        None => Task::Summary { only: None },
        Some("-h" | "--help") => return Ok(Task::Help),
        Some("--only") => Task::Summary { only: Some(section(args.next())?) },
        Some("--tcp") => {
            let clients = number("CLIENTS", args.next().as_deref(), 1_000)?;
            let lines = number("LINES", args.next().as_deref(), 1 << 40)?;
            Task::Tcp { clients, lines }
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

fn number(what: &str, text: Option<&str>, max: u64) -> Result<u64, String> {
    text.and_then(|text| text.parse().ok())
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| unexpected("--tcp", &format!("{what}, a number from 1 to {max}"), text))
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
    cargo run --profile bench -p figures -- --tcp CLIENTS LINES
                                    only lines to up to 1,000 clients, for a profiler

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
        assert_eq!(parsed("--tcp 100 5000"), Ok(Task::Tcp { clients: 100, lines: 5_000 }));
        assert_eq!(parsed("--help"), Ok(Task::Help));
    }

    #[test]
    fn errors_name_the_argument() {
        for (args, name) in [
            ("--fast", "--fast"),
            ("--only", "route"),
            ("--only rout", "rout"),
            ("--tcp", "CLIENTS"),
            ("--tcp 3", "LINES"),
            ("--tcp 0 1", "not 0"),
            ("--tcp 3 x", "not x"),
            ("--only route more", "more"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(name), "{args}: {error}");
        }
    }
}
