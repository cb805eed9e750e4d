//! The same with a task and a channel for each customer.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout_at};

struct Worker {
    /// `None` if it is to return.
    orders: Option<mpsc::Sender<u64>>,
    task: JoinHandle<()>,
    is_idle: bool,
}

/// Returns the customers whose orders took too long after `stop`.
pub async fn run<H, Fut>(
    orders: impl Stream<Item = (u64, u64)> + Send + 'static,
    stop: impl Future<Output = ()>,
    handle: H,
) -> Vec<u64>
where
    H: Fn(u64, u64) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (mut orders, mut stop) = (pin!(orders), pin!(stop));
    let mut workers = HashMap::new();
    let mut ticker = interval(Duration::from_secs(60));
    let deadline = loop {
        tokio::select! {
            order = orders.next() => match order {
                Some((customer, order)) => send(&mut workers, customer, order, &handle).await,
                None => break None,
            },
            _ = ticker.tick() => workers.retain(|_, worker: &mut Worker| {
                if std::mem::replace(&mut worker.is_idle, true) {
                    worker.orders = None;
                }
                worker.orders.is_some() || !worker.task.is_finished()
            }),
            () = &mut stop => break Some(Instant::now() + Duration::from_secs(5)),
        }
    };
    let mut hung = Vec::new();
    for worker in workers.values_mut() {
        worker.orders = None;
    }
    for (customer, mut worker) in workers {
        if let Some(deadline) = deadline {
            if timeout_at(deadline, &mut worker.task).await.is_err() {
                worker.task.abort();
                hung.push(customer);
            }
        } else {
            let _ = worker.task.await;
        }
    }
    hung
}

async fn send<H, Fut>(workers: &mut HashMap<u64, Worker>, customer: u64, mut order: u64, handle: &H)
where
    H: Fn(u64, u64) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    loop {
        if let Some(worker) = workers.get_mut(&customer) {
            if let Some(orders) = &worker.orders {
                match orders.send(order).await {
                    Ok(()) => return worker.is_idle = false,
                    Err(mpsc::error::SendError(refused)) => order = refused, // it has panicked
                }
            }
        }
        let before = workers.remove(&customer).map(|worker| worker.task);
        let (sender, mut orders) = mpsc::channel(64);
        let handle = handle.clone();
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            while let Some(order) = orders.recv().await {
                handle(customer, order).await;
            }
        });
        workers.insert(customer, Worker { orders: Some(sender), task, is_idle: false });
    }
}
