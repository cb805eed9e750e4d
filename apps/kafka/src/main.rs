//! Two consumers of a topic with eight partitions, on a mock cluster or on a real one:
//!
//! ```sh
//! cargo run                                   # no broker: a cluster in this process
//! cargo run -- 127.0.0.1:9092 orders workers  # brokers, topic, group: one consumer, until ctrl-c
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use kafka_workers::{Outcome, Settings, consume};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaResult;
use rdkafka::message::OwnedMessage;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tokio::time::sleep;

const MESSAGES: u32 = 40_000;
const CUSTOMERS: u32 = 1_000;

#[tokio::main(worker_threads = 4)]
async fn main() {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let ended = match &arguments[..] {
        [] => demonstrate().await,
        [brokers, topic, group] => run(brokers, topic, group).await,
        _ => {
            eprintln!("usage: kafka-workers [BROKERS TOPIC GROUP]");
            std::process::exit(2);
        }
    };
    if let Err(error) = ended {
        eprintln!("kafka: {error}");
        std::process::exit(1);
    }
}

fn config(brokers: &str, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", group);
    config.set("auto.offset.reset", "earliest");
    config
}

async fn run(brokers: &str, topic: &str, group: &str) -> KafkaResult<()> {
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let outcome = consume(
        config(brokers, group),
        topic,
        Settings::default(),
        stop,
        |message: OwnedMessage| async move {
            println!("{message:?}");
            Ok::<(), String>(())
        },
    );
    print("the consumer", &outcome.await?);
    Ok(())
}

async fn demonstrate() -> KafkaResult<()> {
    let cluster = MockCluster::new(3)?;
    cluster.create_topic("orders", 8, 3)?;
    let brokers = cluster.bootstrap_servers();
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &brokers).create()?;
    for n in 0..MESSAGES {
        let key = format!("customer {}", n % CUSTOMERS);
        let payload = n.to_string();
        let record = FutureRecord::to("orders").key(&key).payload(&payload);
        // A full queue of the producer is waited for.
        drop(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    tokio::task::block_in_place(|| producer.flush(Duration::from_secs(60)))?;
    println!("{MESSAGES} messages of {CUSTOMERS} customers in eight partitions");
    let handled = Arc::new(AtomicU32::new(0));
    let late = async {
        sleep(Duration::from_secs(4)).await;
        println!("the second consumer joins");
        consume_all(&brokers, &handled).await
    };
    let (first, second) = futures::join!(consume_all(&brokers, &handled), late);
    print("the first consumer", &first?);
    print("the second consumer", &second?);
    println!("{} messages were handled", handled.load(Relaxed));
    Ok(())
}

/// Runs a consumer until all messages are handled.
async fn consume_all(brokers: &str, handled: &Arc<AtomicU32>) -> KafkaResult<Outcome> {
    let stop = async {
        while handled.load(Relaxed) < MESSAGES {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let counted = Arc::clone(handled);
    let handle = move |_| {
        let handled = Arc::clone(&counted);
        async move {
            sleep(Duration::from_millis(100)).await;
            handled.fetch_add(1, Relaxed);
            Ok::<(), String>(())
        }
    };
    let mut config = config(brokers, "workers");
    // So that the demonstration does not wait for long: a rebalance begins with a heartbeat.
    config.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "500");
    consume(config, "orders", Settings::default(), stop, handle).await
}

fn print(name: &str, outcome: &Outcome) {
    let Outcome { summary, open, committed } = outcome;
    println!(
        "{name}: {} read, {} taken, {} revoked, {} not done {:?}",
        summary.received,
        summary.taken,
        summary.revoked,
        open.len(),
        &open[..open.len().min(10)],
    );
    if let Err(error) = committed {
        println!("{name}: the last positions were not committed: {error}");
    }
    if let Some(error) = &summary.first_error {
        println!("{name}: {error}");
    }
}
