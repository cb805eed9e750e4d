//! Many producers and one consumer: the cost of a sample on its way to a server or into a demux.
//!
//! Repeats a published study of channels, and checks in addition that each sample arrives once, in
//! the order of its producer.

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

use crate::gather::{BatchReceiver, OneByOne, SampleSender, notify_queue, swap_buffer};
use crate::measure::{Contender, Group, Run};

/// Where the samples go.
#[derive(Debug, Clone, Copy)]
pub enum Destination {
    /// To a server over loopback, with one write per batch.
    Server,
    /// To sixteen sinks, by a demux.
    Demux,
}

const ROOM: usize = 1_024;

/// Returns the contenders for `producers` producers, each of which sends its share of the samples.
#[must_use]
pub fn group(producers: u64, destination: Destination, samples: u64) -> Group {
    // One write per sample is slow, so those contenders get fewer samples.
    let one_by_one = match destination {
        Destination::Server => samples / 8,
        Destination::Demux => samples,
    };
    let name = match destination {
        Destination::Server => "server",
        Destination::Demux => "demux",
    };
    Group::new(
        format!("fan_in/{producers} producers to a {name}"),
        [
            Contender::new("unbounded", one_by_one, move |samples| {
                let (sender, receiver) = mpsc::unbounded_channel();
                run(producers, destination, samples, sender, OneByOne(receiver))
            }),
            Contender::new("bounded", one_by_one, move |samples| {
                let (sender, receiver) = mpsc::channel(ROOM);
                run(producers, destination, samples, sender, OneByOne(receiver))
            }),
            Contender::new("unbounded, recv_many", samples, move |samples| {
                let (sender, receiver) = mpsc::unbounded_channel();
                run(producers, destination, samples, sender, receiver)
            }),
            Contender::new("bounded, recv_many", samples, move |samples| {
                let (sender, receiver) = mpsc::channel(ROOM);
                run(producers, destination, samples, sender, receiver)
            }),
            Contender::new("tokio Mutex<Vec>", samples, move |samples| {
                let (sender, receiver) = notify_queue::<tokio::sync::Mutex<Vec<u64>>>();
                run(producers, destination, samples, sender, receiver)
            }),
            Contender::new("swapped std Mutex<Vec>", samples, move |samples| {
                let (sender, receiver) = swap_buffer();
                run(producers, destination, samples, sender, receiver)
            }),
            Contender::new("SegQueue", samples, move |samples| {
                let (sender, receiver) = notify_queue::<SegQueue<u64>>();
                run(producers, destination, samples, sender, receiver)
            }),
        ],
    )
}

fn run(
    producers: u64,
    destination: Destination,
    samples: u64,
    sender: impl SampleSender,
    receiver: impl BatchReceiver,
) -> Run {
    let per_producer = (samples / producers).max(1);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build();
    runtime.expect("the runtime starts").block_on(async {
        let start = Instant::now();
        for producer in 0..producers {
            let sender = sender.clone();
            tokio::spawn(async move {
                for number in 0..per_producer {
                    sender.send_sample(producer << 32 | number).await;
                }
            });
        }
        drop(sender);
        let arrived = match destination {
            Destination::Server => serve(producers, receiver).await,
            Destination::Demux => demux(producers, receiver).await,
        };
        Run::new(start.elapsed(), per_producer * producers, arrived)
    })
}

/// Checks the samples against the next number of each producer.
struct SampleCheck {
    next: Vec<u32>,
    count: u64,
}

impl SampleCheck {
    fn new(producers: u64) -> Self {
        Self { next: vec![0; producers as usize], count: 0 }
    }

    fn record(&mut self, sample: u64) {
        let (producer, number) = ((sample >> 32) as usize, sample as u32);
        assert_eq!(self.next[producer], number, "a sample is missing or arrived twice");
        self.next[producer] += 1;
        self.count += 1;
    }
}

async fn serve(producers: u64, mut receiver: impl BatchReceiver) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is available");
    let address = listener.local_addr().expect("the listener is bound");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the consumer connects");
        let (mut check, mut bytes, mut kept) = (SampleCheck::new(producers), vec![0; 1 << 16], 0);
        loop {
            let read = stream.read(&mut bytes[kept..]).expect("the consumer writes");
            if read == 0 {
                assert_eq!(kept, 0, "the last sample is incomplete");
                return check.count;
            }
            let end = kept + read;
            let (samples, rest) = bytes[..end].as_chunks::<8>();
            samples.iter().for_each(|sample| check.record(u64::from_be_bytes(*sample)));
            kept = rest.len();
            bytes.copy_within(end - kept..end, 0);
        }
    });
    let consumer = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("the socket is open");
        let (mut batch, mut bytes) = (Vec::new(), Vec::new());
        while receiver.receive_batch(&mut batch).await {
            bytes.clear();
            batch.drain(..).for_each(|sample| bytes.extend(sample.to_be_bytes()));
            stream.write_all(&bytes).await.expect("the server reads");
        }
    });
    consumer.await.expect("the consumer did not panic");
    server.join().expect("the server did not panic")
}

/// A sink that records its samples in the shared check.
struct RecordingSink(Arc<Mutex<SampleCheck>>);

impl Sink<u64> for RecordingSink {
    type Error = ();

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, sample: u64) -> Result<(), ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(sample);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

async fn demux(producers: u64, receiver: impl BatchReceiver) -> u64 {
    const KEYS: u64 = 16;
    let check = Arc::new(Mutex::new(SampleCheck::new(producers)));
    let sinks = (0..KEYS).map(|key| (key, RecordingSink(Arc::clone(&check)))).collect::<Vec<_>>();
    let batches = stream::unfold(receiver, async |mut receiver| {
        let mut batch = Vec::new();
        receiver.receive_batch(&mut batch).await.then_some((stream::iter(batch), receiver))
    });
    let demux = batches.flatten().demux_by(|sample| (sample >> 32) % KEYS, stream::iter(sinks));
    tokio::spawn(demux).await.expect("the demux did not panic");
    check.lock().unwrap_or_else(PoisonError::into_inner).count
}
