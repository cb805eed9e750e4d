//! Clients that misbehave. Many tasks run each attack concurrently and repeatedly.

use std::array;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clients::HOSE;
use crate::net::{PATIENCE, connect, connect_narrow, connect_with_retry};
use crate::report::{Counter, Report};
use crate::suspend;

/// The outcome of an attack.
pub enum Outcome {
    Done,
    /// The connection failed. This is not a fault of the server.
    CutOff,
    /// The server misbehaved.
    Violation(String),
}

impl From<io::Result<()>> for Outcome {
    fn from(done: io::Result<()>) -> Self {
        done.map_or(Self::CutOff, |()| Self::Done)
    }
}

#[derive(Clone, Copy)]
enum Attack {
    Reset,
    Mute,
    Garbage,
    Giant,
    Churn,
    Herd,
    Visit,
    Suspend,
}

/// Each attack, its number of concurrent tasks, and the maximal pause between two runs in
/// milliseconds.
const ATTACKS: [(Attack, u32, u64); 8] = [
    (Attack::Reset, 16, 30),
    (Attack::Mute, 24, 100),
    (Attack::Garbage, 4, 50),
    (Attack::Giant, 2, 200),
    (Attack::Churn, 8, 20),
    (Attack::Herd, 2, 3000),
    (Attack::Visit, 16, 30),
    (Attack::Suspend, 8, 50),
];

impl Attack {
    async fn run(self, report: &Report) -> Outcome {
        match self {
            Self::Reset => reset(report).await.into(),
            Self::Mute => mute(report).await.into(),
            Self::Garbage => noise(report, Counter::Garbage).await,
            Self::Giant => noise(report, Counter::Giant).await,
            Self::Churn => churn(report).await.into(),
            Self::Herd => herd(report).await.into(),
            Self::Visit => visit(report).await,
            Self::Suspend => suspend::run(report).await,
        }
    }
}

pub struct Attackers(JoinSet<()>);

impl Attackers {
    pub fn spawn(report: &Arc<Report>) -> Self {
        let mut all = JoinSet::new();
        for (attack, many, pause) in ATTACKS {
            for _ in 0..many {
                all.spawn(repeat(attack, pause, Arc::clone(report)));
            }
        }
        Self(all)
    }

    /// Aborts all attackers wherever they are. This is the last attack.
    pub async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

async fn repeat(attack: Attack, pause: u64, report: Arc<Report>) {
    loop {
        match attack.run(&report).await {
            Outcome::Done => {}
            Outcome::CutOff => report.count(Counter::Failed, 1),
            Outcome::Violation(what) => report.violation(what),
        }
        sleep(Duration::from_millis(fastrand::u64(pause / 2..=pause))).await;
    }
}

/// Subscribes, publishes, and resets the connection in the middle of a line.
async fn reset(report: &Report) -> io::Result<()> {
    let mut stream = connect(report.address()).await?;
    let text =
        format!("sub {HOSE}\nsub feed0\nsub junk\npub junk one\npub junk two\nunsub feed0\npub ju");
    stream.write_all(text.as_bytes()).await?;
    sleep(Duration::from_millis(fastrand::u64(..40))).await;
    stream.set_zero_linger()?;
    report.count(Counter::Reset, 1);
    Ok(())
}

/// Subscribes to more lines than its buffers can hold, does not read, and disconnects in one of
/// three ways.
async fn mute(report: &Report) -> io::Result<()> {
    let mut stream = connect_narrow(report.address()).await?;
    stream.write_all(format!("sub {HOSE}\nsub feed1\nsub junk\n").as_bytes()).await?;
    report.count(Counter::Mute, 1);
    sleep(Duration::from_millis(fastrand::u64(500..15_000))).await;
    match fastrand::u8(..3) {
        0 => stream.set_zero_linger()?,
        1 => {}
        _ => {
            // The server waits for it only for a limited time.
            stream.write_all(b"quit\n").await?;
            stream.shutdown().await?;
            sleep(Duration::from_secs(8)).await;
        }
    }
    Ok(())
}

/// Sends invalid requests. The connection must be usable again after the next end of a line.
async fn noise(report: &Report, counter: Counter) -> Outcome {
    let mut text = match counter {
        Counter::Giant => vec![b'x'; 1 << 20],
        _ => std::iter::repeat_with(|| fastrand::u8(..)).take(1 << 16).collect(),
    };
    let key = format!("noise{}", fastrand::u64(..));
    text.extend(format!("\nsub {key}\npub {key} still here\nquit\n").bytes());
    let Ok(stream) = connect(report.address()).await else { return Outcome::CutOff };
    match timeout(PATIENCE, converse(stream, &text)).await {
        Ok(Ok(answer)) if answer.ends_with(format!("\n{key} still here\n").as_bytes()) => {}
        Ok(Ok(answer)) => {
            let end = answer[answer.len().saturating_sub(60)..].escape_ascii();
            return Outcome::Violation(format!(
                "after garbage, the client's line did not arrive: …{end}"
            ));
        }
        Ok(Err(error)) => {
            return Outcome::Violation(format!("the connection failed after garbage: {error}"));
        }
        Err(_) => {
            return Outcome::Violation(format!("no answer within {PATIENCE:?} after garbage"));
        }
    }
    report.count(counter, 1);
    Outcome::Done
}

/// Writes `text` and reads concurrently. Returns what it read until the end.
async fn converse(stream: TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
    let (mut reader, mut writer) = stream.into_split();
    let mut answer = Vec::new();
    let (written, read) = tokio::join!(writer.write_all(text), reader.read_to_end(&mut answer));
    written?;
    read?;
    Ok(answer)
}

/// Repeatedly subscribes to and unsubscribes from fifty keys, as fast as the server allows.
async fn churn(report: &Report) -> io::Result<()> {
    const KEYS: usize = 50;
    let (mut reader, mut writer) = connect_with_retry(report.address()).await?;
    let mark = format!("mark{}", fastrand::u64(..));
    writer.write_all(format!("sub {mark}\n").as_bytes()).await?;
    for round in 0..fastrand::u32(1..100) {
        let first = fastrand::usize(..500);
        let keys = array::from_fn::<_, KEYS, _>(|n| format!("churn{}", (first + n) % 500));
        let text = keys.iter().map(|key| format!("sub {key}\n"));
        let text = text.chain([format!("pub {} hello\n", keys[0])]);
        let text = text.chain(keys.iter().map(|key| format!("unsub {key}\n")));
        let text = text.chain([format!("pub {mark} {round}\n")]).collect::<Vec<_>>().concat();
        writer.write_all(text.as_bytes()).await?;
        let expected = format!("{mark} {round}");
        while reader.line().await?.ok_or(io::ErrorKind::UnexpectedEof)? != expected {}
        report.count(Counter::Churn, KEYS as u64);
        sleep(Duration::from_millis(fastrand::u64(..15))).await;
    }
    Ok(())
}

/// Many clients subscribe to one key and disconnect at the same moment.
async fn herd(report: &Report) -> io::Result<()> {
    let mut herd = Vec::new();
    for _ in 0..150 {
        let mut stream = connect(report.address()).await?;
        stream.write_all(b"sub herd\nsub feed2\n").await?;
        herd.push(stream);
    }
    let last = herd.len() - 1;
    herd[last].write_all(b"pub herd hello\n").await?;
    sleep(Duration::from_millis(300)).await;
    if fastrand::bool() {
        herd.iter().try_for_each(TcpStream::set_zero_linger)?;
    }
    report.count(Counter::Herd, herd.len() as u64);
    Ok(())
}

/// Subscribes, publishes, and sends `quit` or shuts down its write direction. It must receive its
/// line.
async fn visit(report: &Report) -> Outcome {
    let key = format!("visit{}", fastrand::u64(..));
    let Ok((mut reader, mut writer)) = connect_with_retry(report.address()).await else {
        return Outcome::Violation("a short visit could not connect".to_owned());
    };
    let quit = if fastrand::bool() { "quit\n" } else { "" };
    let text = format!("sub {key}\npub {key} hello\n{quit}");
    let talk = async {
        writer.write_all(text.as_bytes()).await?;
        writer.shutdown().await?;
        let mut line = reader.line().await?.map(str::to_owned);
        if line == Some(format!("ok sub {key}")) {
            line = reader.line().await?.map(str::to_owned);
        }
        reader.end().await?;
        io::Result::Ok(line)
    };
    match talk.await {
        Ok(Some(line)) if line == format!("{key} hello") => {}
        Ok(line) => return Outcome::Violation(format!("a short visit to {key} received {line:?}")),
        Err(error) => return Outcome::Violation(format!("a short visit failed: {error}")),
    }
    report.count(Counter::Visit, 1);
    Outcome::Done
}
