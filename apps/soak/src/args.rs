//! The command line.

use std::path::PathBuf;

pub const USAGE: &str = "\
usage: soak [--seconds N] [--server PATH]

  --seconds N    how long to attack; default 600, at least 10
  --server PATH  the `lines` server to start; by default, the example is built
";

pub struct Options {
    pub seconds: u64,
    pub server: Option<PathBuf>,
}

pub enum Mode {
    Soak(Options),
    /// Run a client. The soak starts itself in this mode, to suspend and kill the process.
    Client {
        address: String,
        key: String,
    },
    Help,
}

pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Mode, String> {
    let mut options = Options { seconds: 600, server: None };
    while let Some(arg) = args.next() {
        let mut value = |what| args.next().ok_or_else(|| format!("{arg} needs {what}"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Mode::Help),
            "--client" => {
                return Ok(Mode::Client { address: value("an address")?, key: value("a key")? });
            }
            "--server" => options.server = Some(value("a path")?.into()),
            "--seconds" => {
                let text = value("a number")?;
                let seconds = text.parse().ok().filter(|&seconds| seconds >= 10);
                options.seconds = seconds
                    .ok_or_else(|| format!("--seconds {text}: not a number of at least 10"))?;
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    Ok(Mode::Soak(options))
}
