//! The script that runs this program, and the processes that it starts.

use std::io::{BufRead, stdin};

/// The gateway that is tested, and its broker.
#[derive(Debug, clap::Args)]
pub struct Site {
    /// HOST:PORT of the gateway
    #[arg(long)]
    pub gateway: String,
    #[arg(long, value_name = "URI")]
    pub amqp: String,
    #[arg(long)]
    pub exchange: String,
}

/// Prints a line for the script to act on, and waits until it has.
pub async fn ask(what: &str) -> Result<(), String> {
    println!("@{what}");
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    if line.trim() == "done" { Ok(()) } else { Err(format!("the script did not do this: {what}")) }
}
