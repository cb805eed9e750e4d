//! Clients that get the items of a key as lines, from a writer of the hub.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use model::dice::Dice;
use stream_demux_hub::{Overflow, Terms, WriterEnd};
use tokio::io::{AsyncRead, AsyncReadExt, duplex};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::{Item, KEYS, World};

fn line((key, n): Item, bytes: &mut Vec<u8>) -> io::Result<()> {
    writeln!(bytes, "{key} {n}")
}

fn notice(lost: u64, bytes: &mut Vec<u8>) {
    writeln!(bytes, "lost {lost}").expect("a vector takes it");
}

/// What a client knows from what it has read.
#[derive(Debug, Default)]
struct Reading {
    /// The number of the next item, once there was one.
    next: Option<u64>,
    lines: u64,
    lost: u64,
    /// The bytes of a line that is not complete.
    rest: Vec<u8>,
}

impl Reading {
    /// # Panics
    ///
    /// Panics if these bytes cannot follow.
    fn take(&mut self, key: u64, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        for text in rest.split_inclusive(|&byte| byte == b'\n') {
            let text = std::str::from_utf8(text).expect("lines are text");
            let Some(line) = text.strip_suffix('\n') else {
                self.rest = text.into();
                return;
            };
            let (word, number) = line.split_once(' ').expect("two words");
            let number = number.parse::<u64>().expect("a number");
            if word == "lost" {
                // What was lost before the first item has no number.
                self.next = self.next.map(|next| next + number);
                self.lost += number;
            } else {
                assert_eq!(word, key.to_string());
                assert!(self.next.is_none_or(|next| next == number), "{line} after {self:?}");
                self.next = Some(number + 1);
                self.lines += 1;
            }
        }
    }
}

/// Connects again and again until the hub has ended.
pub(crate) async fn client(world: Arc<World>, mut dice: Dice) {
    while !world.hub.is_closed() {
        connect(&world, &mut dice).await;
    }
}

/// A connection, from its beginning to its end.
async fn connect(world: &World, dice: &mut Dice) {
    let key = dice.below(KEYS);
    let policies = [Overflow::DropOldest, Overflow::Evict, Overflow::Wait];
    let policy = policies[usize::try_from(dice.below(3)).expect("it is small")];
    // Few kinds of terms, so that writers share a sink.
    let terms = Terms::new().buffer(8 << (3 * dice.below(2))).overflow(policy);
    let limit = if dice.below(4) == 0 { dice.below(2_000) + 1 } else { u64::MAX };
    let (server, mut socket) = duplex(16 << dice.below(8));
    let writer = world.hub.attach_writer(key, server, line, terms).on_lost(notice).limit(limit);
    let writer = writer.stall_timeout(Duration::from_secs(60));
    world.subscriptions.fetch_add(1, Relaxed);
    let writer = tokio::spawn(writer);
    let (reading, stays) = read(&mut socket, key, dice).await;
    if !stays && dice.below(2) == 0 {
        writer.abort();
    }
    drop(socket);
    let written = writer.await;
    world.lines.fetch_add(reading.lines, Relaxed);
    let Ok(written) = written else { return };
    // Nobody has read the end of what was written for a client that left.
    if !stays {
        return;
    }
    world.lost_lines.fetch_add(reading.lost, Relaxed);
    assert_eq!(written.items, reading.lines, "{written:?}");
    if matches!(written.end, WriterEnd::Overflowed) {
        assert!(policy == Overflow::Evict && written.lost >= reading.lost, "{written:?}");
        return;
    }
    assert_eq!(written.lost, reading.lost, "{written:?}");
    assert!(reading.rest.is_empty(), "{reading:?}");
    match written.end {
        WriterEnd::Closed => {
            let all = world.accepted(key).load(Relaxed);
            assert_eq!(written.unwritten, 0);
            // The publisher may not have counted its last item yet.
            let is_complete = |next| next == all || next == all + 1;
            assert!(reading.next.is_none_or(is_complete), "{reading:?} of {all}");
        }
        WriterEnd::Limit => assert_eq!(written.items + written.lost, limit),
        WriterEnd::Aborted => {}
        end => panic!("the writer has ended: {end:?}"),
    }
}

/// Reads until the writer ends, or until it is time to leave. Returns `true` if it has ended.
async fn read(socket: &mut (impl AsyncRead + Unpin), key: u64, dice: &mut Dice) -> (Reading, bool) {
    let leaves_after = if dice.below(3) == 0 { u64::MAX } else { dice.below(2_000) };
    let (mut reading, mut buffer) = (Reading::default(), [0; 1_024]);
    loop {
        let most = usize::try_from(1 + dice.below(1_024)).expect("it is small");
        match socket.read(&mut buffer[..most]).await.expect("a pipe does not fail") {
            0 => return (reading, true),
            bytes => reading.take(key, &buffer[..bytes]),
        }
        match dice.below(200) {
            0 => sleep(Duration::from_millis(10)).await,
            1..20 => yield_now().await,
            _ => {}
        }
        if reading.lines + reading.lost > leaves_after {
            return (reading, false);
        }
    }
}
