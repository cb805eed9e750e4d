//! The same with a `broadcast` channel for each room, which is removed with its last client.

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender, channel};

type Rooms = Arc<Mutex<HashMap<Arc<str>, Sender<Arc<str>>>>>;

pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let rooms = Rooms::default();
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(chat(client, Arc::clone(&rooms)));
    }
}

async fn chat(client: TcpStream, rooms: Rooms) -> io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut lines = BufReader::new(reader).lines();
    let Some(room) = lines.next_line().await?.map(Arc::<str>::from) else { return Ok(()) };
    let (sender, said) = {
        let mut rooms = rooms.lock().unwrap();
        let sender = rooms.entry(Arc::clone(&room)).or_insert_with(|| channel(1_024).0);
        (sender.clone(), sender.subscribe())
    };
    let read = async {
        while let Some(line) = lines.next_line().await? {
            let _ = sender.send(line.into());
        }
        Ok(())
    };
    let write = async {
        let (mut said, mut text) = (said, String::new());
        while let Some(line) = next(&mut said).await {
            push(&mut text, line);
            for _ in 1..256 {
                match said.try_recv() {
                    Ok(line) => push(&mut text, Ok(line)),
                    Err(TryRecvError::Lagged(lost)) => push(&mut text, Err(lost)),
                    Err(_) => break,
                }
            }
            writer.write_all(text.as_bytes()).await?;
            text.clear();
        }
        Ok(())
    };
    let end = tokio::select!(end = read => end, end = write => end);
    let mut rooms = rooms.lock().unwrap();
    if sender.receiver_count() == 0 {
        rooms.remove(&room);
    }
    end
}

async fn next(said: &mut Receiver<Arc<str>>) -> Option<Result<Arc<str>, u64>> {
    match said.recv().await {
        Ok(line) => Some(Ok(line)),
        Err(RecvError::Lagged(lost)) => Some(Err(lost)),
        Err(RecvError::Closed) => None,
    }
}

fn push(text: &mut String, line: Result<Arc<str>, u64>) {
    let _ = match line {
        Ok(line) => writeln!(text, "{line}"),
        Err(lost) => writeln!(text, "({lost} lines lost)"),
    };
}
