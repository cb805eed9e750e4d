//! The same with a task and a channel for each customer, and semaphores.
//!
//! A customer whose orders come faster than they are handled does not hold the others: its channel
//! has no bound, and a semaphore bounds all of them.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout_at};

use super::{Commit, Handle};

/// Of a partition.
#[derive(Default)]
struct Positions {
    open: BTreeSet<u64>,
    next: u64,
}

type Progress = Arc<Mutex<HashMap<u32, Positions>>>;

/// An order of a customer, and its place in what waits.
struct Order {
    partition: u32,
    offset: u64,
    _place: OwnedSemaphorePermit,
}

struct Worker {
    /// `None` if it is to return.
    orders: Option<mpsc::UnboundedSender<Order>>,
    task: JoinHandle<()>,
    is_idle: bool,
}

/// Commits positions each second and at the end, which is at most five seconds after `stop`. Returns
/// the partitions and offsets of the orders that are not done.
pub async fn run(
    log: impl Stream<Item = (u32, u64, u64)> + Send + 'static,
    mut stop: impl Future<Output = ()> + Unpin,
    handle: Handle,
    commit: Commit,
) -> Vec<(u32, u64)> {
    let mut log = pin!(log);
    let progress = Progress::default();
    let turns = Arc::new(Semaphore::new(200));
    let places = Arc::new(Semaphore::new(64_000 + 16_384));
    let mut workers = HashMap::new();
    let mut commits = interval(Duration::from_secs(1));
    let mut idle = interval(Duration::from_secs(60));
    let deadline = loop {
        tokio::select! {
            order = log.next() => {
                let Some((partition, offset, customer)) = order else { break None };
                {
                    let mut progress = progress.lock().unwrap();
                    let positions = progress.entry(partition).or_default();
                    positions.open.insert(offset);
                    positions.next = positions.next.max(offset + 1);
                }
                let place = Arc::clone(&places).acquire_owned().await.unwrap();
                let order = Order { partition, offset, _place: place };
                send(&mut workers, customer, order, &progress, &turns, handle);
            }
            _ = commits.tick() => commit_all(&progress, commit),
            _ = idle.tick() => workers.retain(|_, worker: &mut Worker| {
                if std::mem::replace(&mut worker.is_idle, true) {
                    worker.orders = None;
                }
                worker.orders.is_some() || !worker.task.is_finished()
            }),
            () = &mut stop => break Some(Instant::now() + Duration::from_secs(5)),
        }
    };
    for worker in workers.values_mut() {
        worker.orders = None;
    }
    for mut worker in workers.into_values() {
        if let Some(deadline) = deadline {
            if timeout_at(deadline, &mut worker.task).await.is_err() {
                worker.task.abort();
                let _ = worker.task.await;
            }
        } else {
            let _ = worker.task.await;
        }
    }
    commit_all(&progress, commit);
    let progress = progress.lock().unwrap();
    let open = progress.iter().flat_map(|(&partition, positions)| {
        positions.open.iter().map(move |&offset| (partition, offset))
    });
    open.collect()
}

fn commit_all(progress: &Progress, commit: Commit) {
    for (&partition, positions) in &*progress.lock().unwrap() {
        commit((partition, positions.open.first().copied().unwrap_or(positions.next)));
    }
}

fn send(
    workers: &mut HashMap<u64, Worker>,
    customer: u64,
    mut order: Order,
    progress: &Progress,
    turns: &Arc<Semaphore>,
    handle: Handle,
) {
    if let Some(worker) = workers.get_mut(&customer) {
        if let Some(orders) = &worker.orders {
            match orders.send(order) {
                Ok(()) => return worker.is_idle = false,
                Err(mpsc::error::SendError(refused)) => order = refused, // it has panicked
            }
        }
    }
    let before = workers.remove(&customer).map(|worker| worker.task);
    let (sender, mut orders) = mpsc::unbounded_channel();
    let (progress, turns) = (Arc::clone(progress), Arc::clone(turns));
    let task = tokio::spawn(async move {
        if let Some(before) = before {
            let _ = before.await;
        }
        while let Some(Order { partition, offset, _place }) = orders.recv().await {
            let _turn = turns.acquire().await.unwrap();
            handle(customer, offset).await;
            let mut progress = progress.lock().unwrap();
            progress.get_mut(&partition).unwrap().open.remove(&offset);
        }
    });
    let _ = sender.send(order);
    workers.insert(customer, Worker { orders: Some(sender), task, is_idle: false });
}
