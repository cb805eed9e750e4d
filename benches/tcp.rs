//! The cost of a line to one of many TCP clients.

mod common;

use figures::tcp::{self, Feed, Job, Keys};
use figures::threads::Threads;

fn main() {
    let feeds = [Feed::Channel(64), Feed::Channel(100), Feed::Channel(1_024), Feed::Saturated];
    let jobs = feeds.into_iter().flat_map(|feed| {
        [Keys::RoundRobin, Keys::Skewed].into_iter().flat_map(move |keys| {
            [1, 17, 100, 1_000].into_iter().map(move |clients| Job {
                clients,
                feed,
                keys,
                threads: Threads::One,
            })
        })
    });
    common::bench(jobs.map(|job| tcp::group(job, 100_000)));
}
