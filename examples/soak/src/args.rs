//! The command line.

use std::path::PathBuf;

pub const USAGE: &str = "\
usage: soak [--seconds N] [--victim PATH]

  --seconds N    how long to attack, 600 unless given; at least 10
  --victim PATH  a `lines` server to start, instead of building the one of this workspace
";

pub struct Options {
    pub seconds: u64,
    pub victim: Option<PathBuf>,
}

pub enum Mode {
    Soak(Options),
    /// A client in a process of its own, to be stopped and killed: this program starts itself so.
    Client {
        address: String,
        key: String,
    },
    Help,
}

pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Mode, String> {
    let mut options = Options { seconds: 600, victim: None };
    while let Some(arg) = args.next() {
        let mut value = |what| args.next().ok_or_else(|| format!("{arg} needs {what}"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Mode::Help),
            "--client" => {
                return Ok(Mode::Client { address: value("an address")?, key: value("a key")? });
            }
            "--victim" => options.victim = Some(value("a path")?.into()),
            "--seconds" => {
                let text = value("a number")?;
                let seconds = text.parse().ok().filter(|&seconds| seconds >= 10);
                options.seconds =
                    seconds.ok_or_else(|| format!("--seconds {text}: not a number from 10"))?;
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    Ok(Mode::Soak(options))
}
