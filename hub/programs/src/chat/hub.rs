//! A chat. The first line of a client names its room; all others are sent to everyone in the room.

use std::fmt::Write;
use std::io;
use std::sync::Arc;

use stream_demux_hub::{Hub, Lagged};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let rooms = Hub::new();
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(chat(client, rooms.clone()));
    }
}

async fn chat(client: TcpStream, rooms: Hub<Arc<str>, Arc<str>>) -> io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut lines = BufReader::new(reader).lines();
    let Some(room) = lines.next_line().await?.map(Arc::from) else { return Ok(()) };
    let mut said = rooms.subscribe(Arc::clone(&room));
    let read = async {
        while let Some(line) = lines.next_line().await? {
            rooms.publish(room.clone(), line.into()).await.map_err(io::Error::other)?;
        }
        Ok(())
    };
    let write = async {
        let (mut batch, mut text) = (Vec::new(), String::new());
        while said.recv_many(&mut batch, 256).await > 0 {
            for line in batch.drain(..) {
                let _ = match line {
                    Ok(line) => writeln!(text, "{line}"),
                    Err(Lagged(lost)) => writeln!(text, "({lost} lines lost)"),
                };
            }
            writer.write_all(text.as_bytes()).await?;
            text.clear();
        }
        Ok(())
    };
    tokio::select!(end = read => end, end = write => end)
}
