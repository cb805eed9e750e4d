//! Handles the messages of a Kafka topic: those of a customer in order, many customers at a time,
//! and commits a position when everything before it is done.
//!
//! A message is handled at least once. It may be handled again after a restart or a rebalance, if
//! its position was not committed before; but never beside itself: a partition goes to another
//! consumer when no worker of it is left.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::{Stream, stream};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, StreamConsumer,
};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Message, OwnedMessage};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use stream_demux_hub::{Progress, Summary, Ticket, Workers, WorkersHandle, for_each_by_key};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout};

/// What is handled in order. Kafka takes partitions away, so the partition is a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Customer {
    pub partition: i32,
    /// The key of the messages.
    pub name: Vec<u8>,
}

/// How a run has ended.
#[derive(Debug)]
pub struct Outcome {
    pub summary: Summary<Customer>,
    /// Partitions and offsets of messages that were read and are not done. They will be read again.
    pub open: Vec<(i32, u64)>,
    /// Whether the last positions were committed. Otherwise messages that are done may be read again.
    pub committed: KafkaResult<()>,
}

/// The settings of [`consume`].
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How many messages are handled at a time.
    pub concurrency: usize,
    /// How long messages that were read are handled after the stop.
    pub patience: Duration,
    /// How often positions are stored. The client library commits them.
    pub store_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            concurrency: 200,
            patience: Duration::from_secs(5),
            store_every: Duration::from_millis(500),
        }
    }
}

/// Handles the messages of a topic until `stop`, or the first error or panic of `handle`.
///
/// A message whose handling fails holds the position of its partition. So `handle` should retry, or
/// put aside what it cannot handle; an error or a panic ends the run, and the message is read again
/// by the next one.
///
/// The runtime has to have more than one thread: a rebalance blocks the one that reads.
///
/// # Errors
///
/// Fails if the configuration is wrong.
pub async fn consume<H, Fut, E>(
    mut config: ClientConfig,
    topic: &str,
    settings: Settings,
    stop: impl Future<Output = ()>,
    handle: H,
) -> KafkaResult<Outcome>
where
    H: Fn(OwnedMessage) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    let progress = Progress::new();
    let handover = Handover {
        topic: topic.to_owned(),
        progress: progress.clone(),
        workers: OnceLock::new(),
        runtime: Handle::current(),
    };
    let interval = settings.store_every.as_millis().max(1).to_string();
    config.set("enable.auto.commit", "true").set("auto.commit.interval.ms", interval);
    config.set("enable.auto.offset.store", "false");
    if config.get("partition.assignment.strategy").is_none() {
        // A rebalance takes only those partitions away that another consumer gets.
        config.set("partition.assignment.strategy", "cooperative-sticky");
    }
    let consumer: StreamConsumer<Handover> = config.create_with_context(handover)?;
    let consumer = Arc::new(consumer);
    consumer.subscribe(&[topic])?;

    let failed = Arc::new(Notify::new());
    let (error, panic) = (Arc::clone(&failed), Arc::clone(&failed));
    let workers = Workers::new()
        .concurrency(settings.concurrency)
        .on_error(move |_, _| error.notify_one())
        .on_panic(move |_, _| panic.notify_one());
    let input = progress.track(messages(Arc::clone(&consumer)), position);
    let mut run = for_each_by_key(input, customer, workers, move |_, mut messages| {
        let handle = handle.clone();
        async move {
            while let Some((message, ticket)) = messages.recv().await {
                handle(message).await?;
                ticket.done();
            }
            Ok::<(), E>(())
        }
    });
    // The first rebalance comes when the input is polled with a connection to the group: later.
    let is_first = consumer.context().workers.set(run.handle()).is_ok();
    debug_assert!(is_first);

    let mut stop = std::pin::pin!(stop);
    let mut tick = tokio::time::interval(settings.store_every);
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = failed.notified() => break,
            _ = tick.tick() => store(&*consumer, topic, progress.committable()),
        }
    }
    let summary = run.shutdown(settings.patience).await;
    store(&*consumer, topic, progress.committable());
    let committed = commit_at_the_end(&consumer, settings.patience).await;
    Ok(Outcome { summary, open: progress.open(), committed })
}

/// The messages of a consumer, which the stream shares.
fn messages(
    consumer: Arc<StreamConsumer<Handover>>,
) -> impl Stream<Item = OwnedMessage> + Send + 'static {
    stream::unfold(consumer, |consumer| async {
        loop {
            match consumer.recv().await.map(|message| message.detach()) {
                Ok(message) => return Some((message, consumer)),
                // The client library connects again by itself.
                Err(error) => eprintln!("kafka: {error}"),
            }
        }
    })
}

fn position(message: &OwnedMessage) -> (i32, u64) {
    let offset = u64::try_from(message.offset()).expect("a message that was read has an offset");
    (message.partition(), offset)
}

fn customer((message, _): &(OwnedMessage, Ticket)) -> Customer {
    Customer { partition: message.partition(), name: message.key().unwrap_or_default().to_vec() }
}

/// Stores positions, which the client library commits.
fn store<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    topic: &str,
    positions: impl IntoIterator<Item = (i32, u64)>,
) {
    let mut list = TopicPartitionList::new();
    for (partition, position) in positions {
        let position = i64::try_from(position).expect("a position of Kafka is an i64");
        if let Err(error) = list.add_partition_offset(topic, partition, Offset::Offset(position)) {
            eprintln!("kafka: partition {partition}: {error}");
        }
    }
    if list.count() == 0 {
        return;
    }
    if let Err(error) = consumer.store_offsets(&list) {
        // A rebalance has taken a partition in the meantime, and has stored its position.
        eprintln!("kafka: positions were not stored: {error}");
    }
}

fn commit<C: ConsumerContext>(consumer: &impl Consumer<C>) -> KafkaResult<()> {
    match consumer.commit_consumer_state(CommitMode::Sync) {
        // Nothing was stored since the last commit.
        Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => Ok(()),
        other => other,
    }
}

/// Commits what was stored, after a rebalance if there is one.
async fn commit_at_the_end(
    consumer: &StreamConsumer<Handover>,
    patience: Duration,
) -> KafkaResult<()> {
    let deadline = Instant::now() + patience;
    loop {
        let committed = block_in_place(|| commit(consumer));
        // In the second case, one has ended that the consumer has not noticed yet.
        let is_rebalancing = matches!(
            committed,
            Err(KafkaError::ConsumerCommit(
                RDKafkaErrorCode::RebalanceInProgress | RDKafkaErrorCode::IllegalGeneration
            ))
        );
        if !is_rebalancing || Instant::now() > deadline {
            return committed;
        }
        // It goes on only while the consumer is polled. A message that comes is not begun, so it is
        // read again by the next consumer.
        drop(timeout(Duration::from_millis(100), consumer.recv()).await);
    }
}

/// Hands partitions over to other consumers.
struct Handover {
    topic: String,
    progress: Progress<i32>,
    workers: OnceLock<WorkersHandle<Customer, (OwnedMessage, Ticket)>>,
    runtime: Handle,
}

impl ClientContext for Handover {}

impl ConsumerContext for Handover {
    /// Before partitions are given away, ends their workers, waits until these are gone, and commits
    /// what is done.
    ///
    /// It is called in the task that reads, or that drops the consumer. Their thread must not be the
    /// only one of the runtime, because an aborted worker may need a thread to be dropped.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(list) = rebalance else { return };
        let partitions =
            list.elements().iter().map(TopicPartitionListElem::partition).collect::<HashSet<_>>();
        if let Some(workers) = self.workers.get() {
            let revoked = workers.revoke_if(|customer| partitions.contains(&customer.partition));
            block_in_place(|| self.runtime.block_on(revoked));
        }
        let mut positions = HashMap::new();
        for partition in partitions {
            positions
                .extend(self.progress.forget(&partition).map(|position| (partition, position)));
        }
        if consumer.assignment_lost() {
            return; // another consumer may have them by now
        }
        store(consumer, &self.topic, positions);
        if let Err(error) = commit(consumer) {
            eprintln!("kafka: positions were not committed before a rebalance: {error}");
        }
    }
}
