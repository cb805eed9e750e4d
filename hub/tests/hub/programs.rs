//! The example programs do what they say.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use hub_programs::chat::hub as chat;
use hub_programs::customers::hub as workers;
use hub_programs::fanout::hub as fanout;
use hub_programs::{partitions, prices};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::runtimes::{RUNTIMES, run};

/// A client that does not read while others talk learns how much it has missed.
#[test]
fn slow_client_of_the_chat_learns_what_it_lost() {
    const LINES: u64 = 20_000; // of 1 kB: more than sockets hold
    for threads in RUNTIMES {
        run(threads, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = tokio::spawn(chat::serve(listener));
            let (mut slow, _writer) = join(address).await;
            let (mut quick, mut writer) = join(address).await;
            let talk = tokio::spawn(async move {
                let burst = format!("{}\n", "a line".repeat(200)).repeat(100);
                for _ in 0..LINES / 100 {
                    writer.write_all(burst.as_bytes()).await.unwrap();
                }
                writer.write_all(b"over\n").await.unwrap();
                writer
            });
            count_until_over(&mut quick).await;
            let (lines, lost) = count_until_over(&mut slow).await;
            // The hello of the other client may be among what is lost.
            assert!(lost > 0 && [LINES, LINES + 1].contains(&(lines + lost)), "{lines} + {lost}");
            drop(talk.await.unwrap());
            server.abort();
        });
    }
}

type Client = (BufReader<tokio::net::tcp::OwnedReadHalf>, tokio::net::tcp::OwnedWriteHalf);

async fn join(address: std::net::SocketAddr) -> Client {
    let (reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let mut reader = BufReader::new(reader);
    writer.write_all(b"room\nhello\n").await.unwrap();
    let mut line = String::new();
    while line != "hello\n" {
        line.clear();
        reader.read_line(&mut line).await.unwrap();
    }
    (reader, writer)
}

/// Counts the lines of the one who talks, and those that were lost, until the first "over".
async fn count_until_over(client: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> (u64, u64) {
    let (mut lines, mut lost, mut line) = (0, 0, String::new());
    while line != "over\n" {
        line.clear();
        client.read_line(&mut line).await.unwrap();
        if let Some(text) = line.strip_prefix('(') {
            lost += text.split(' ').next().unwrap().parse::<u64>().unwrap();
        } else if line != "hello\n" && line != "over\n" {
            lines += 1;
        }
    }
    (lines, lost)
}

#[tokio::test(start_paused = true)]
async fn customer_that_hangs_is_named() {
    let orders = stream::iter(0..20).map(|n| (n % 5, n)).chain(stream::pending());
    let stop = sleep(Duration::from_secs(1));
    let hung = workers::run(orders, stop, |customer, _| async move {
        if customer == 3 {
            std::future::pending::<()>().await;
        }
    });
    assert_eq!(hung.await, [3]);
}

/// Handles an order of `partitions`. One customer hangs.
fn handle(customer: u64, offset: u64) -> BoxFuture<'static, ()> {
    let handled = async move {
        sleep(Duration::from_millis(1 + offset % 7)).await;
        if customer == 3 {
            std::future::pending::<()>().await;
        }
    };
    handled.boxed()
}

fn commit((partition, position): (u32, u64)) {
    // The first order of the customer that hangs is the fourth of partition 3.
    assert!(partition < 4 && (partition != 3 || position <= 3), "{partition} at {position}");
}

/// Both name the orders of the customer that hangs, in the partition that has them.
#[tokio::test(start_paused = true)]
async fn orders_that_are_not_done_are_named() {
    let log = || {
        let orders = stream::iter((0..4_000).map(|n| ((n % 4) as u32, n / 4, n % 1_000)));
        orders.chain(stream::pending())
    };
    let stop = || Box::pin(sleep(Duration::from_secs(60)));
    let expected = (0..4).map(|round| (3, round * 250)).collect::<Vec<_>>();
    assert_eq!(partitions::hub::run(log(), stop(), handle, commit).await, expected);
    assert_eq!(partitions::plain::run(log(), stop(), handle, commit).await, expected);
}

#[tokio::test]
async fn every_subscriber_receives_its_topic() {
    let items = stream::iter(0..1_000).map(|n| (n % 50, n));
    assert_eq!(fanout::run(items).await, 20_000);
}

/// Both show the last price of each symbol at the end: clients that read at once, clients that read
/// now and then, and those of the table. Half of the updates are of 50 symbols, so that a client which
/// keeps the latest updates, but not that of each symbol, misses some.
#[tokio::test(start_paused = true)]
async fn every_client_shows_the_newest_prices_at_the_end() {
    let updates = || {
        (0..20_000_u64).map(|n| {
            let symbol = if n % 2 == 1 { n % 100 } else { n / 2 * 7_919 % 5_000 };
            (u32::try_from(symbol).unwrap(), n)
        })
    };
    let newest = updates().collect::<HashMap<_, _>>();
    let expected = 3 * newest.into_values().sum::<u64>(); // each symbol has three clients
    let updates = || stream::iter(updates());
    let pause = Duration::from_millis(50);
    assert_eq!(prices::hub::run(updates(), None).await, expected);
    assert_eq!(prices::hub::run(updates(), Some(pause)).await, expected);
    assert_eq!(prices::plain::run(updates(), pause).await, expected);
}
