//! The same with a table of the newest prices, in which each client looks up its symbols after each
//! pause.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{SYMBOLS, symbols};

struct Table {
    prices: HashMap<u32, Mutex<u64>>,
    is_final: AtomicBool,
}

impl Table {
    fn set(&self, symbol: u32, price: u64) {
        *self.prices[&symbol].lock().unwrap_or_else(PoisonError::into_inner) = price;
    }

    fn get(&self, symbol: u32) -> u64 {
        *self.prices[&symbol].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the sum of the prices that the clients show at the end.
pub async fn run(updates: impl Stream<Item = (u32, u64)> + Send + 'static, pause: Duration) -> u64 {
    let prices = (0..SYMBOLS).map(|symbol| (symbol, Mutex::new(0))).collect();
    let table = Arc::new(Table { prices, is_final: AtomicBool::new(false) });
    let mut clients = JoinSet::new();
    for client in 0..300 {
        let table = Arc::clone(&table);
        clients.spawn(async move {
            let mut screen = symbols(client).map(|symbol| (symbol, 0)).collect::<HashMap<_, _>>();
            let mut is_final = false;
            while !is_final {
                // Asked first, so that nothing comes after the last look. Acquire: pairs with the
                // store after the last price.
                is_final = table.is_final.load(Acquire);
                for (&symbol, shown) in &mut screen {
                    let newest = table.get(symbol);
                    if *shown != newest {
                        *shown = newest; // and the client is told
                    }
                }
                sleep(pause).await;
            }
            screen.into_values().sum::<u64>()
        });
    }
    updates.for_each(async |(symbol, price)| table.set(symbol, price)).await;
    table.is_final.store(true, Release);
    clients.join_all().await.into_iter().sum()
}
