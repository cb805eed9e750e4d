//! `Progress`.

use std::cell::RefCell;
use std::collections::HashMap;

use stream_demux_hub::{Progress, Ticket};

use crate::common::Dice;
use crate::runtimes::within_a_minute;

#[test]
fn position_is_that_of_the_first_item_that_is_open() {
    let progress = Progress::new();
    let mut tickets = (10..15).map(|n| progress.begin("a", n)).collect::<Vec<_>>();
    assert_eq!(tickets[3].offset(), 13);
    tickets.remove(3).done();
    tickets.remove(0).done();
    assert_eq!((progress.committable()["a"], progress.open().len()), (11, 3));
    tickets.into_iter().for_each(Ticket::done);
    assert_eq!((progress.committable()["a"], progress.open()), (15, vec![]));
}

#[test]
fn ticket_that_is_dropped_keeps_its_place() {
    let progress = Progress::new();
    drop(progress.begin(0, 5));
    progress.begin(0, 6).done();
    progress.begin(1, 100).done();
    assert_eq!(progress.committable(), HashMap::from([(0, 5), (1, 101)]));
    assert_eq!(progress.open(), [(0, 5)]);
}

#[test]
fn offset_that_is_begun_again_is_open_until_both_are_done() {
    let progress = Progress::new();
    let (first, second) = (progress.begin(0, 5), progress.begin(0, 5));
    first.done();
    assert_eq!((progress.committable()[&0], progress.open()), (5, vec![(0, 5)]));
    second.done();
    assert_eq!(progress.committable()[&0], 6);
    // Read again from an earlier position.
    let again = progress.begin(0, 3);
    assert_eq!(progress.committable()[&0], 3);
    again.done();
    assert_eq!(progress.committable()[&0], 6);
}

#[test]
fn late_ticket_of_a_forgotten_partition_changes_nothing() {
    let progress = Progress::new();
    let late = progress.begin(0, 5);
    assert_eq!((progress.forget(&0), progress.forget(&0)), (Some(5), None));
    assert_eq!((progress.committable().len(), progress.open().len()), (0, 0));
    let _open = progress.begin(0, 5);
    late.done();
    assert_eq!((progress.committable()[&0], progress.open()), (5, vec![(0, 5)]));
}

#[test]
fn last_offset_of_all_does_not_overflow() {
    let progress = Progress::default();
    progress.clone().begin((), u64::MAX).done();
    assert_eq!(progress.committable()[&()], u64::MAX);
    assert_eq!(format!("{progress:?}"), format!("{{(): ({}, 0)}}", u64::MAX));
}

/// With the item in front open for ever, it must not keep what is done behind it.
#[test]
fn many_items_behind_one_that_hangs_are_committed_when_it_is_done() {
    let progress = Progress::new();
    let hangs = progress.begin(0, 0);
    let odd = (1..10_000).map(|n| progress.begin(0, n)).filter_map(|ticket| {
        if ticket.offset() % 1_000 == 1 {
            return Some(ticket);
        }
        ticket.done();
        None
    });
    let odd = odd.collect::<Vec<_>>();
    assert_eq!((progress.committable()[&0], progress.open().len()), (0, 11));
    hangs.done();
    assert_eq!(progress.committable()[&0], 1);
    odd.into_iter().rev().for_each(Ticket::done);
    assert_eq!((progress.committable()[&0], progress.open().len()), (10_000, 0));
}

/// Everything that was ever begun.
#[derive(Default)]
struct Model(HashMap<usize, Vec<(u64, bool)>>);

impl Model {
    fn committable(&self) -> HashMap<usize, u64> {
        let mut committable = HashMap::new();
        for (&partition, items) in &self.0 {
            let open = items.iter().filter(|item| !item.1).map(|item| item.0).min();
            let next = items.iter().map(|item| item.0 + 1).max().unwrap_or(0);
            committable.insert(partition, open.unwrap_or(next));
        }
        committable
    }

    fn open(&self) -> Vec<(usize, u64)> {
        let mut open = Vec::new();
        for (&partition, items) in &self.0 {
            open.extend(items.iter().filter(|item| !item.1).map(|item| (partition, item.0)));
        }
        open.sort_unstable();
        open.dedup();
        open
    }
}

/// Out-of-order ends, gaps, repeated offsets, dropped tickets, partitions that are forgotten and
/// come back.
#[test]
fn random_schedules_agree_with_a_list_of_everything() {
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        // Some schedules have so many open items that those that are done are removed in between.
        let (steps, ends) = if seed % 10 == 0 { (2_000, 8) } else { (200, 10) };
        let (progress, mut model) = (Progress::new(), Model::default());
        // The index of an item in the model, or none if its partition was forgotten.
        let mut tickets = Vec::<(Ticket, usize, Option<usize>)>::new();
        let mut next = [0_u64; 3];
        for step in 0..steps {
            match dice.index(12) {
                0..5 => {
                    let partition = dice.index(3);
                    let offset = match dice.index(8) {
                        0 => next[partition].saturating_sub(dice.index(60) as u64),
                        1 => next[partition] + dice.index(5) as u64,
                        _ => next[partition],
                    };
                    next[partition] = next[partition].max(offset + 1);
                    let items = model.0.entry(partition).or_default();
                    items.push((offset, false));
                    tickets.push((
                        progress.begin(partition, offset),
                        partition,
                        Some(items.len() - 1),
                    ));
                }
                5..10 if !tickets.is_empty() && dice.index(10) < ends => {
                    let (ticket, partition, item) = tickets.swap_remove(dice.index(tickets.len()));
                    if dice.index(30) == 0 {
                        drop(ticket);
                    } else {
                        ticket.done();
                        if let Some(item) = item {
                            model.0.get_mut(&partition).unwrap()[item].1 = true;
                        }
                    }
                }
                10 if dice.index(10) == 0 => {
                    let partition = dice.index(3);
                    let expected = model.committable().remove(&partition);
                    assert_eq!(progress.forget(&partition), expected);
                    model.0.remove(&partition);
                    for ticket in &mut tickets {
                        if ticket.1 == partition {
                            ticket.2 = None;
                        }
                    }
                }
                _ => {}
            }
            if steps > 200 && step % 50 > 0 {
                continue;
            }
            assert_eq!(progress.committable(), model.committable());
            let mut open = progress.open();
            open.sort_unstable();
            assert_eq!(open, model.open());
        }
    }
}

thread_local! {
    static ASKED: RefCell<Option<Progress<Curious>>> = const { RefCell::new(None) };
}

/// A partition that asks what is open when it is dropped, once.
#[derive(PartialEq, Eq, Hash, Clone)]
struct Curious;

impl Drop for Curious {
    fn drop(&mut self) {
        if let Some(progress) = ASKED.take() {
            assert_eq!(progress.open().len(), 2);
        }
    }
}

#[test]
fn partition_that_is_known_may_ask_when_it_is_dropped() {
    within_a_minute(|| {
        let progress = Progress::new();
        let _first = progress.begin(Curious, 1);
        ASKED.set(Some(progress.clone()));
        let _second = progress.begin(Curious, 2);
        assert!(ASKED.take().is_none(), "it has asked");
    });
}
