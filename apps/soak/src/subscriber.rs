//! A client in a separate process, which the parent suspends, resumes and kills.
//!
//! It subscribes and checks what it reads until its standard input is closed. Then it disconnects
//! and prints how many lines it received and lost.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::check::Checker;
use crate::net::PATIENCE;

pub fn run(address: &str, key: &str) -> ExitCode {
    // A suspended process would otherwise outlive its parent.
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        eprintln!("soak client: cannot set the parent-death signal: {error}");
    }
    match subscribe(address, key) {
        Ok(checker) => {
            println!("{} {}", checker.seen, checker.lost);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn subscribe(address: &str, key: &str) -> io::Result<Checker> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut to = stream.try_clone()?;
    to.write_all(format!("sub {key}\n").as_bytes())?;
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        if to.write_all(b"quit\n").is_err() {
            // So that the reading loop ends, too.
            let _ = to.shutdown(Shutdown::Both);
        }
    });
    let mut checker = Checker::default();
    for line in BufReader::new(stream).lines() {
        checker.look(key, &line?).map_err(io::Error::other)?;
    }
    Ok(checker)
}
