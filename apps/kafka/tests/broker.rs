//! Consumers in processes of their own, and a real broker: both are killed.
//!
//! Skipped unless the environment variable `KAFKA_JARS` names the folder with the jars of Apache
//! Kafka, as `check` does.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kafka_workers::{Settings, consume};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Message, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::sleep;

const PARTITIONS: i32 = 6;
const CUSTOMERS: usize = 100;
/// A watchdog: it can only fail.
const LONG: Duration = Duration::from_secs(300);

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "workers");
    config.set("auto.offset.reset", "earliest").set("session.timeout.ms", "6000");
    config
}

/// A broker with a folder of its own. Dropping it kills the process, by its id.
struct Broker {
    process: Option<Child>,
    folder: PathBuf,
    jars: String,
    address: String,
}

impl Broker {
    fn start() -> Option<Self> {
        let Ok(jars) = std::env::var("KAFKA_JARS") else {
            // The test harness does not keep this from the terminal.
            let _ = std::io::stderr().write_all(b"skipped: KAFKA_JARS is not set; see `check`\n");
            return None;
        };
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("broker-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Below the range of source ports: otherwise one that starts again may find its port taken.
        let id = std::process::id() % 97;
        let ports = (20_000..32_000_u16).filter(|&port| u32::from(port) % 97 == id);
        let ports: Vec<u16> = ports
            .filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
            .take(2)
            .collect();
        let [port, controller] = ports[..] else { panic!("no free ports") };
        let address = format!("127.0.0.1:{port}");
        let settings = format!(
            "process.roles=broker,controller\nnode.id=1\n\
            controller.quorum.voters=1@127.0.0.1:{controller}\n\
            listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}\n\
            advertised.listeners=PLAINTEXT://{address}\ncontroller.listener.names=CONTROLLER\n\
            listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
            log.dirs={}\nnum.partitions={PARTITIONS}\noffsets.topic.num.partitions=4\n\
            offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n\
            transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n\
            broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n",
            folder.join("log").display(),
        );
        fs::write(folder.join("server.properties"), settings).unwrap();
        let mut broker = Self { process: None, folder, jars, address };
        let id = broker.java("kafka.tools.StorageTool", &["random-uuid"]).output().unwrap();
        let id = String::from_utf8(id.stdout).unwrap();
        let format = ["format", "-t", id.trim(), "-c", "server.properties"];
        let formatted = broker.java("kafka.tools.StorageTool", &format).output().unwrap();
        assert!(formatted.status.success(), "{formatted:?}");
        broker.restart();
        Some(broker)
    }

    fn java(&self, class: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("java");
        command.arg("-Xmx512m").arg("-cp").arg(format!("{}/*", self.jars)).arg(class);
        command.args(arguments).current_dir(&self.folder);
        command
    }

    /// Starts it at the same ports, with what it has stored.
    fn restart(&mut self) {
        let output = File::create(self.folder.join("output")).unwrap();
        let mut command = self.java("kafka.Kafka", &["server.properties"]);
        let errors = output.try_clone().unwrap();
        // In its place at once, so that it ends with the test, whatever happens here.
        let process = command.stdout(output).stderr(errors).spawn().unwrap();
        let process = self.process.insert(process);
        let consumer: BaseConsumer = config(&self.address).create().unwrap();
        let deadline = Instant::now() + LONG;
        while consumer.fetch_metadata(None, Duration::from_secs(1)).is_err() {
            let ended = process.try_wait().unwrap();
            let said = || fs::read_to_string(self.folder.join("output")).unwrap();
            assert!(ended.is_none(), "the broker has ended: {}", said());
            assert!(Instant::now() < deadline, "the broker does not answer: {}", said());
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Produces messages: the payload is the number of the message among those of its customer.
fn produce(brokers: &str, topic: &str, count: usize) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true");
    let producer: FutureProducer = config.create().unwrap();
    for n in 0..count {
        let key = format!("customer {}", n % CUSTOMERS);
        let payload = (n / CUSTOMERS).to_string();
        let record = FutureRecord::to(topic).key(&key).payload(&payload);
        drop(producer.send_result(record).map_err(|(error, _)| error).unwrap());
    }
    tokio::task::block_in_place(|| producer.flush(LONG)).unwrap();
}

/// A consumer in a process of its own: this program, which runs the "test" below only.
struct Process(Child);

impl Process {
    fn start(broker: &Broker, topic: &str, log: &Path) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_of_a_consumer", "--nocapture"])
            .env("CONSUMER_BROKERS", &broker.address)
            .env("CONSUMER_TOPIC", topic)
            .env("CONSUMER_LOG", log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(process)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks it to end, and waits until it has committed its positions.
    fn stop(mut self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn process_of_a_consumer() {
    let Ok(brokers) = std::env::var("CONSUMER_BROKERS") else { return };
    let (topic, log) =
        (std::env::var("CONSUMER_TOPIC").unwrap(), std::env::var("CONSUMER_LOG").unwrap());
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let settings = Settings { concurrency: 8, ..Settings::default() };
    let handle = move |message: OwnedMessage| {
        let log = log.clone();
        async move {
            sleep(Duration::from_millis(5)).await;
            // Before the message is done. One write, so that lines of several processes are whole.
            let mut line = String::new();
            let payload = std::str::from_utf8(message.payload().unwrap()).unwrap();
            let customer = std::str::from_utf8(message.key().unwrap()).unwrap();
            let (partition, offset) = (message.partition(), message.offset());
            writeln!(line, "{partition} {offset} {payload} {customer}").unwrap();
            let mut file = OpenOptions::new().append(true).open(log)?;
            file.write_all(line.as_bytes())
        }
    };
    let outcome = consume(config(&brokers), &topic, settings, stop, handle).await.unwrap();
    assert_eq!((outcome.open, outcome.summary.panics), (vec![], 0));
    assert!(outcome.summary.first_error.is_none());
    outcome.committed.unwrap();
}

/// What consumers have handled so far.
#[derive(Default)]
struct Handled {
    /// The offsets of each partition, in the order of the log.
    offsets: HashMap<i32, Vec<i64>>,
    different: usize,
    again: usize,
}

/// Reads what was handled, and checks that no customer's message was left out.
fn handled(log: &Path) -> Handled {
    let mut handled = Handled::default();
    let mut customers = HashMap::<String, usize>::new();
    let text = fs::read_to_string(log).unwrap();
    // The last line may be half written.
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    for line in text[..whole].lines() {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next().unwrap().parse::<i64>().unwrap();
        let (partition, offset, number) = (number(), number(), number());
        let count = customers.entry(words.next().unwrap().to_owned()).or_default();
        let number = usize::try_from(number).unwrap();
        assert!(number <= *count, "{line}: {count} of this customer were handled before");
        if number == *count {
            *count += 1;
            handled.different += 1;
        } else {
            handled.again += 1;
        }
        handled.offsets.entry(i32::try_from(partition).unwrap()).or_default().push(offset);
    }
    handled
}

/// The committed position and the end of each partition, if the broker answers.
fn positions(consumer: &BaseConsumer, topic: &str) -> Option<Vec<(i32, i64, i64)>> {
    let time = Duration::from_secs(2);
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition(topic, partition);
    }
    let committed = consumer.committed_offsets(list, time).ok()?;
    let mut positions = Vec::new();
    for partition in 0..PARTITIONS {
        let offset = match committed.find_partition(topic, partition)?.offset() {
            Offset::Offset(offset) => offset,
            _ => 0, // nothing was committed
        };
        let (_, end) = consumer.fetch_watermarks(topic, partition, time).ok()?;
        positions.push((partition, offset, end));
    }
    Some(positions)
}

/// A topic with messages, and what was handled of it.
struct Run {
    topic: &'static str,
    messages: usize,
    log: PathBuf,
    consumer: BaseConsumer,
    looks: usize,
}

impl Run {
    fn new(broker: &Broker, topic: &'static str, messages: usize) -> Self {
        produce(&broker.address, topic, messages);
        let log = broker.folder.join(topic);
        File::create(&log).unwrap();
        let consumer = config(&broker.address).create().unwrap();
        Self { topic, messages, log, consumer, looks: 0 }
    }

    /// Checks that nothing is committed that is not done.
    fn look(&mut self) {
        let Some(positions) = positions(&self.consumer, self.topic) else { return };
        // Read after the positions: what was committed has been handled by now.
        let handled = handled(&self.log);
        for (partition, committed, _) in positions {
            let mut offsets = handled.offsets.get(&partition).cloned().unwrap_or_default();
            offsets.sort_unstable();
            offsets.dedup();
            let before = offsets.iter().take_while(|&&offset| offset < committed).count();
            let done = i64::try_from(before).unwrap();
            assert_eq!(
                done, committed,
                "partition {partition}: not all before {committed} is done"
            );
        }
        self.looks += 1;
    }

    /// Waits until this part of the messages is handled.
    async fn reach(&mut self, part: usize) {
        let deadline = Instant::now() + LONG;
        loop {
            let different = handled(&self.log).different;
            if different >= self.messages * part / 100 {
                return;
            }
            assert!(Instant::now() < deadline, "{different} of {}", self.messages);
            tokio::task::block_in_place(|| self.look());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// All messages are handled, and the consumers have ended.
    fn check(mut self) {
        self.look();
        let handled = handled(&self.log);
        assert_eq!(handled.different, self.messages);
        for (partition, committed, end) in positions(&self.consumer, self.topic).unwrap() {
            assert_eq!(committed, end, "partition {partition}");
        }
        println!(
            "{}: {} messages handled, {} of them again, positions looked at {} times",
            self.topic, self.messages, handled.again, self.looks
        );
        assert!(self.looks > 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn brokers_and_consumers_are_killed_and_nothing_is_left_out() {
    let Some(mut broker) = tokio::task::block_in_place(Broker::start) else { return };

    let mut run = Run::new(&broker, "broker-is-killed", 4_000);
    let consumer = Process::start(&broker, run.topic, &run.log);
    run.reach(25).await;
    broker.kill();
    sleep(Duration::from_secs(1)).await;
    tokio::task::block_in_place(|| broker.restart());
    run.reach(100).await;
    consumer.stop();
    run.check();

    let mut run = Run::new(&broker, "consumer-is-killed", 4_000);
    let first = Process::start(&broker, run.topic, &run.log);
    let second = Process::start(&broker, run.topic, &run.log);
    run.reach(25).await;
    first.kill();
    run.reach(100).await;
    second.stop();
    run.check();

    let mut run = Run::new(&broker, "three-consumers", 12_000);
    let first = Process::start(&broker, run.topic, &run.log);
    run.reach(10).await;
    let second = Process::start(&broker, run.topic, &run.log);
    run.reach(30).await;
    let third = Process::start(&broker, run.topic, &run.log);
    run.reach(60).await;
    second.stop();
    run.reach(100).await;
    first.stop();
    third.stop();
    run.check();
}
