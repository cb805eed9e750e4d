//! Consumers of a group, on a mock cluster in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kafka_workers::{Settings, consume};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Message, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

const PARTITIONS: i32 = 6;
const CUSTOMERS: usize = 100;
/// A watchdog: it can only fail.
const LONG: Duration = Duration::from_secs(120);

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "workers");
    config.set("auto.offset.reset", "earliest").set("session.timeout.ms", "6000");
    config
}

/// Produces messages: the payload is the number of the message among those of its customer.
fn produce(brokers: &str, count: usize) {
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    for n in 0..count {
        let key = format!("customer {}", n % CUSTOMERS);
        let payload = (n / CUSTOMERS).to_string();
        let record = FutureRecord::to("orders").key(&key).payload(&payload);
        drop(producer.send_result(record).map_err(|(error, _)| error).unwrap());
    }
    tokio::task::block_in_place(|| producer.flush(LONG)).unwrap();
}

/// The committed position and the end of each partition.
fn positions(brokers: &str) -> HashMap<i32, (i64, i64)> {
    let consumer: BaseConsumer = config(brokers).create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition("orders", partition);
    }
    let committed = consumer.committed_offsets(list, LONG).unwrap();
    let mut positions = HashMap::new();
    for partition in 0..PARTITIONS {
        let offset = match committed.find_partition("orders", partition).unwrap().offset() {
            Offset::Offset(offset) => offset,
            _ => 0, // nothing was committed
        };
        let (_, end) = consumer.fetch_watermarks("orders", partition, LONG).unwrap();
        positions.insert(partition, (offset, end));
    }
    positions
}

/// What consumers have handled.
#[derive(Default)]
struct Record {
    /// For each customer: whether a message is being handled, and how many were.
    customers: HashMap<Vec<u8>, (bool, usize)>,
    again: usize,
}

/// Handles a message, and checks that it is the only one of its customer, and that none was left
/// out.
async fn handle(message: OwnedMessage, record: Arc<Mutex<Record>>) -> Result<(), String> {
    let customer = message.key().unwrap().to_vec();
    let text = std::str::from_utf8(message.payload().unwrap()).unwrap();
    let number = text.parse::<usize>().unwrap();
    let _busy = Busy::enter(&record, &customer);
    sleep(Duration::from_millis(3)).await;
    let mut record = record.lock().unwrap();
    let handled = &mut record.customers.get_mut(&customer).unwrap().1;
    assert!(number <= *handled, "{number} comes after {handled}");
    let is_new = number == *handled;
    *handled += usize::from(is_new);
    record.again += usize::from(!is_new);
    Ok(())
}

struct Busy(Arc<Mutex<Record>>, Vec<u8>);

impl Busy {
    fn enter(record: &Arc<Mutex<Record>>, customer: &[u8]) -> Self {
        let mut locked = record.lock().unwrap();
        let busy = &mut locked.customers.entry(customer.to_vec()).or_default().0;
        assert!(!*busy, "two messages of a customer at a time");
        *busy = true;
        drop(locked);
        Self(Arc::clone(record), customer.to_vec())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut record = self.0.lock().unwrap();
        record.customers.get_mut(&self.1).unwrap().0 = false;
    }
}

fn handled(record: &Mutex<Record>) -> usize {
    record.lock().unwrap().customers.values().map(|customer| customer.1).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn second_consumer_takes_partitions_over() {
    const MESSAGES: usize = 6_000;
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", PARTITIONS, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    produce(&brokers, MESSAGES);
    let record = Arc::new(Mutex::new(Record::default()));
    let mut consumers = Vec::new();
    for n in 0..2 {
        if n == 1 {
            // It joins while the first one is busy.
            timeout(LONG, async {
                while handled(&record) < MESSAGES / 10 {
                    sleep(Duration::from_millis(5)).await;
                }
            })
            .await
            .unwrap();
        }
        let (config, of_worker, all) = (config(&brokers), Arc::clone(&record), Arc::clone(&record));
        consumers.push(tokio::spawn(async move {
            let settings = Settings { concurrency: 4, ..Settings::default() };
            let stop = async move {
                while handled(&all) < MESSAGES {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let handle = move |message| handle(message, Arc::clone(&of_worker));
            consume(config, "orders", settings, stop, handle).await.unwrap()
        }));
    }
    let mut received = 0;
    let mut revoked = 0;
    for consumer in consumers {
        let outcome = timeout(LONG, consumer).await.unwrap().unwrap();
        assert_eq!((outcome.open, outcome.summary.panics), (vec![], 0));
        outcome.committed.unwrap();
        received += outcome.summary.received;
        revoked += outcome.summary.revoked;
    }
    println!("{received} read, {revoked} revoked, {} again", record.lock().unwrap().again);
    assert!(received >= MESSAGES as u64 + revoked);
    for (partition, (committed, end)) in positions(&brokers) {
        assert_eq!(committed, end, "partition {partition}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn message_that_is_not_done_is_named_and_read_again() {
    const MESSAGES: usize = 1_000;
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", PARTITIONS, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    produce(&brokers, MESSAGES);
    let record = Arc::new(Mutex::new(Record::default()));

    // The fourth message of this customer hangs.
    let (of_worker, all) = (Arc::clone(&record), Arc::clone(&record));
    let stop = async move {
        while handled(&all) < MESSAGES - 7 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let hanging = move |message: OwnedMessage| {
        let record = Arc::clone(&of_worker);
        async move {
            if message.key() == Some(b"customer 42") && message.payload() == Some(b"3") {
                std::future::pending::<()>().await;
            }
            handle(message, record).await
        }
    };
    let settings = Settings { patience: Duration::from_millis(100), ..Settings::default() };
    let run = consume(config(&brokers), "orders", settings, stop, hanging);
    let outcome = timeout(LONG, run).await.unwrap().unwrap();
    assert_eq!((outcome.open.len(), outcome.summary.hung.len()), (7, 1));
    let hung = &outcome.summary.hung[0];
    assert_eq!(hung.name, b"customer 42");
    let first = outcome.open.iter().map(|&(_, offset)| offset).min().unwrap();
    for (partition, (committed, end)) in positions(&brokers) {
        let expected = if partition == hung.partition { first.try_into().unwrap() } else { end };
        assert_eq!(committed, expected, "partition {partition}");
    }

    // The next run begins with it.
    let (of_worker, all) = (Arc::clone(&record), Arc::clone(&record));
    let stop = async move {
        while handled(&all) < MESSAGES {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let handle = move |message| handle(message, Arc::clone(&of_worker));
    let run = consume(config(&brokers), "orders", Settings::default(), stop, handle);
    assert_eq!(timeout(LONG, run).await.unwrap().unwrap().open, []);
    for (partition, (committed, end)) in positions(&brokers) {
        assert_eq!(committed, end, "partition {partition}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn error_ends_the_run_and_holds_its_position() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", PARTITIONS, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    produce(&brokers, 200);
    let never = Notify::new();
    let run = consume(
        config(&brokers),
        "orders",
        Settings::default(),
        never.notified(),
        |message: OwnedMessage| async move {
            let is_bad = message.key() == Some(b"customer 7") && message.payload() == Some(b"1");
            if is_bad { Err("no credit") } else { Ok(()) }
        },
    );
    let outcome = timeout(LONG, run).await.unwrap().unwrap();
    let first = outcome.summary.first_error.unwrap();
    assert_eq!(
        (&*first.key.name, first.error.to_string()),
        (&b"customer 7"[..], "no credit".into())
    );
    let (partition, offset) = outcome.open[0];
    assert_eq!((outcome.open.len(), partition), (1, first.key.partition));
    assert_eq!(positions(&brokers)[&partition].0, i64::try_from(offset).unwrap());
}
