//! Topics behind a demux, on tokio's runtimes: readers that come and go and stop get what was sent
//! from their beginning on, and are told exactly what they have missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures::stream;
use stream_demux::{Attach, DemuxStreamExt, Lease};
use stream_demux_hub::{End, Lagged, TopicReader, topic};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use crate::common::Dice;
use crate::runtimes::run;

const KEYS: u64 = 4;

/// Item `n` has the key `n % KEYS`, and this number among the items of its key.
fn number(n: u64) -> u64 {
    n / KEYS
}

/// What a program has counted.
#[derive(Default)]
struct Counts {
    received: AtomicU64,
    lost: AtomicU64,
    readers: AtomicU64,
}

/// Reads at its own pace until it has had enough, or to the end. Then it has all that there was.
async fn read(mut reader: TopicReader<u64>, mut dice: Dice, each: u64, counts: Arc<Counts>) {
    let leaves_after = if dice.index(3) == 0 { u64::MAX } else { dice.index(2_000) as u64 };
    let (mut next, mut received, mut lost) = (None, 0, 0);
    let mut buffer = Vec::new();
    counts.readers.fetch_add(1, SeqCst);
    while received + lost <= leaves_after {
        let limit = 1 + dice.index(100);
        if reader.recv_many(&mut buffer, limit).await == 0 {
            assert_eq!(reader.end(), Some(End::Closed));
            assert!(next.is_none_or(|next| next == each), "{next:?} of {each}");
            break;
        }
        for got in buffer.drain(..) {
            match got {
                Ok(item) => {
                    assert_eq!(next.unwrap_or(number(item)), number(item));
                    next = Some(number(item) + 1);
                    received += 1;
                }
                // What was lost before the first item has no number.
                Err(Lagged(missing)) => {
                    next = next.map(|next| next + missing);
                    lost += missing;
                }
            }
        }
        if dice.index(20) == 0 {
            for _ in 0..dice.index(30) {
                yield_now().await;
            }
        }
    }
    assert!(reader.lost() >= lost, "there may be more that it was not told");
    counts.received.fetch_add(received, SeqCst);
    counts.lost.fetch_add(lost, SeqCst);
}

async fn program(seed: u64, each: u64) -> (u64, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let mut dice = Dice::new(seed);
    let (sinks, first): (Vec<_>, Vec<_>) = (0..KEYS).map(|_| topic(1 + dice.index(40))).unzip();
    let mut lease = Lease::new();
    let attach = |(key, sink)| Attach::new(key, sink).leased(&mut lease);
    let orders = stream::iter((0..KEYS).zip(sinks).map(attach).collect::<Vec<_>>());
    let (items, input) = mpsc::channel(16);
    let input = stream::unfold(input, |mut input| async { Some((input.recv().await?, input)) });
    let demux = tokio::spawn(Box::pin(input).demux_by(|n| n % KEYS, orders));

    let mut readers = JoinSet::new();
    for n in 0..each * KEYS {
        if n < 16 || dice.index(100) == 0 {
            // The first reader of each topic reads nothing until the end.
            let reader = first[dice.index(first.len())].subscribe();
            let dice = Dice::new(seed * 1_000_000 + n);
            readers.spawn(read(reader, dice, each, Arc::clone(&counts)));
        }
        items.send(n).await.expect("the demux runs");
        if dice.index(50) == 0 {
            yield_now().await;
        }
    }
    drop(items);
    let totals = demux.await.expect("the demux does not panic");
    assert_eq!((totals.delivered, totals.copies, totals.lost), (each * KEYS, 0, 0));
    for (key, reader) in first.into_iter().enumerate() {
        readers.spawn(read(reader, Dice::new(key as u64), each, Arc::clone(&counts)));
    }
    readers.join_all().await;
    drop(lease);
    (totals.delivered, counts)
}

#[test]
fn readers_that_come_and_go_and_stop_know_what_they_have_missed() {
    for workers in [0, 1, 2, 4] {
        for seed in 1..=4 {
            let (delivered, counts) = run(workers, program(seed, 2_000));
            let [received, lost, readers] =
                [&counts.received, &counts.lost, &counts.readers].map(|count| count.load(SeqCst));
            assert!(
                received > delivered && lost > 0 && readers > 50,
                "{received}, {lost}, {readers}"
            );
        }
    }
}

/// Readers and the sink in plain threads, without a runtime: a reader is woken for each burst that
/// it waits for, so none hangs.
#[test]
fn readers_in_threads_of_their_own_are_woken() {
    use futures::SinkExt;
    use futures::executor::block_on;

    crate::runtimes::within_a_minute(|| {
        for capacity in [1, 2, 16] {
            let (mut sink, first) = topic(capacity);
            let readers = (0..3).map(|_| first.subscribe()).collect::<Vec<_>>();
            drop(first);
            std::thread::scope(|scope| {
                for mut reader in readers {
                    scope.spawn(move || {
                        let mut next = 0;
                        while let Some(got) = block_on(reader.recv()) {
                            match got {
                                Ok(item) => {
                                    assert_eq!(item, next);
                                    next += 1;
                                }
                                Err(Lagged(lost)) => next += lost,
                            }
                        }
                        assert_eq!((next, reader.end()), (20_000, Some(End::Closed)));
                    });
                }
                block_on(async {
                    for item in 0..20_000_u64 {
                        if item % 7 == 0 {
                            sink.send(item).await.expect("there are readers");
                        } else {
                            sink.feed(item).await.expect("there are readers");
                        }
                    }
                    sink.close().await.expect("it closes");
                });
            });
        }
    });
}
