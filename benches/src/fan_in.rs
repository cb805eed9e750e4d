//! Many producers, one consumer: what does a sample cost on its way to a server, or into a demux?
//!
//! Repeats a study of over-used channels, with what it lacked: the other side checks that each
//! sample arrives once, in the order of its producer.

use std::io::Read;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use crossbeam_queue::SegQueue;
use futures::{Sink, StreamExt, stream};
use stream_demux::DemuxStreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::mpsc;

use crate::gather::{Give, OneByOne, Take, notified, swapped};
use crate::measure::{Contender, Group, Run};

/// Where the samples go.
#[derive(Debug, Clone, Copy)]
pub enum Into {
    /// To a server over loopback, a write for each batch.
    Server,
    /// To sixteen sinks, by a demux.
    Demux,
}

const ROOM: usize = 1_024;

/// So many producers, each with its share of the samples.
#[must_use]
pub fn group(producers: u64, into: Into, samples: u64) -> Group {
    // A write for each sample takes its time.
    let few = match into {
        Into::Server => samples / 8,
        Into::Demux => samples,
    };
    let name = match into {
        Into::Server => "server",
        Into::Demux => "demux",
    };
    Group::new(
        format!("fan_in/{producers} producers to a {name}"),
        [
            Contender::new("unbounded", few, move |samples| {
                let (sender, receiver) = mpsc::unbounded_channel();
                run(producers, into, samples, sender, OneByOne(receiver))
            }),
            Contender::new("bounded", few, move |samples| {
                let (sender, receiver) = mpsc::channel(ROOM);
                run(producers, into, samples, sender, OneByOne(receiver))
            }),
            Contender::new("unbounded, recv_many", samples, move |samples| {
                let (sender, receiver) = mpsc::unbounded_channel();
                run(producers, into, samples, sender, receiver)
            }),
            Contender::new("bounded, recv_many", samples, move |samples| {
                let (sender, receiver) = mpsc::channel(ROOM);
                run(producers, into, samples, sender, receiver)
            }),
            Contender::new("tokio Mutex<Vec>", samples, move |samples| {
                let (giver, taker) = notified::<tokio::sync::Mutex<Vec<u64>>>();
                run(producers, into, samples, giver, taker)
            }),
            Contender::new("swapped std Mutex<Vec>", samples, move |samples| {
                let (giver, taker) = swapped();
                run(producers, into, samples, giver, taker)
            }),
            Contender::new("SegQueue", samples, move |samples| {
                let (giver, taker) = notified::<SegQueue<u64>>();
                run(producers, into, samples, giver, taker)
            }),
        ],
    )
}

fn run(producers: u64, into: Into, samples: u64, giver: impl Give, taker: impl Take) -> Run {
    let each = (samples / producers).max(1);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build();
    runtime.expect("a runtime").block_on(async {
        let start = Instant::now();
        for producer in 0..producers {
            let giver = giver.clone();
            tokio::spawn(async move {
                for number in 0..each {
                    giver.give(producer << 32 | number).await;
                }
            });
        }
        drop(giver);
        let arrived = match into {
            Into::Server => serve(producers, taker).await,
            Into::Demux => demux(producers, taker).await,
        };
        Run { elapsed: start.elapsed(), sent: each * producers, arrived, allocations: 0 }
    })
}

/// What each producer is to send next.
struct Ledger {
    next: Vec<u32>,
    count: u64,
}

impl Ledger {
    fn new(producers: u64) -> Self {
        Self { next: vec![0; producers as usize], count: 0 }
    }

    fn enter(&mut self, sample: u64) {
        let (producer, number) = ((sample >> 32) as usize, sample as u32);
        assert_eq!(self.next[producer], number, "a sample is missing, or came twice");
        self.next[producer] += 1;
        self.count += 1;
    }
}

async fn serve(producers: u64, mut taker: impl Take) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the consumer connects");
        let (mut ledger, mut bytes, mut kept) = (Ledger::new(producers), vec![0; 1 << 16], 0);
        loop {
            let got = stream.read(&mut bytes[kept..]).expect("the consumer writes");
            if got == 0 {
                assert_eq!(kept, 0, "the last sample is not whole");
                return ledger.count;
            }
            let end = kept + got;
            let (samples, rest) = bytes[..end].as_chunks::<8>();
            samples.iter().for_each(|sample| ledger.enter(u64::from_be_bytes(*sample)));
            kept = rest.len();
            bytes.copy_within(end - kept..end, 0);
        }
    });
    let consumer = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket");
        let (mut batch, mut bytes) = (Vec::new(), Vec::new());
        while taker.take(&mut batch).await {
            bytes.clear();
            batch.drain(..).for_each(|sample| bytes.extend(sample.to_be_bytes()));
            stream.write_all(&bytes).await.expect("the server reads");
        }
    });
    consumer.await.expect("the consumer did not panic");
    server.join().expect("each sample arrived once")
}

/// Enters what it gets into the ledger of all.
struct Enter(Arc<Mutex<Ledger>>);

impl Sink<u64> for Enter {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, sample: u64) -> Result<(), ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).enter(sample);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

async fn demux(producers: u64, taker: impl Take) -> u64 {
    const KEYS: u64 = 16;
    let ledger = Arc::new(Mutex::new(Ledger::new(producers)));
    let sinks = (0..KEYS).map(|key| (key, Enter(Arc::clone(&ledger)))).collect::<Vec<_>>();
    let batches = stream::unfold(taker, async |mut taker| {
        let mut batch = Vec::new();
        taker.take(&mut batch).await.then_some((stream::iter(batch), taker))
    });
    let demux = batches.flatten().demux_by(|sample| (sample >> 32) % KEYS, stream::iter(sinks));
    tokio::spawn(demux).await.expect("each sample arrived once");
    ledger.lock().unwrap_or_else(PoisonError::into_inner).count
}
