//! Guarantee 2: the items of one attachment reach its sink in the order of the input, whatever
//! happens to its queue, to the held item, and to its key.

use crate::common::{Dice, Op, Rig, SinkHandle, Split, Terms};
use stream_demux::{Demux, Order};

/// Creates a demux in which the key of item `n` is `n / 1000`.
fn rig() -> Rig {
    rig_with(|demux| demux)
}

fn rig_with(settings: impl FnOnce(Split) -> Split) -> Rig {
    Rig::keyed(|n| n / 1_000, settings).with_silent_sinks()
}

impl Rig {
    /// Attaches a parked sink.
    #[track_caller]
    fn parked_under(&mut self, key: u32, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let sink = self.order(key, key, terms);
        sink.park();
        self.sleep();
        sink
    }

    /// Opens the sink, and runs until the task parks.
    #[track_caller]
    fn open(&mut self, sink: &SinkHandle<u32>) {
        sink.open();
        self.sleep();
    }
}

#[test]
fn ready_sinks_get_their_items_in_order() {
    let mut rig = rig_with(|demux| demux.budget(3));
    let sinks = [1, 2, 3].map(|key| rig.attach(key, key));
    rig.send((1..100).flat_map(|n| [1_000 + n, 3_000 + n, 2_000 + n, 3_100 + n]));
    assert_eq!(sinks[0].items(), (1_001..1_100).collect::<Vec<_>>());
    assert_eq!(sinks[1].items(), (2_001..2_100).collect::<Vec<_>>());
    assert_eq!(sinks[2].items(), (1..100).flat_map(|n| [3_000 + n, 3_100 + n]).collect::<Vec<_>>());
}

#[test]
fn an_item_that_comes_while_a_queue_drains_does_not_overtake_it() {
    for budget in 1..=8 {
        for buffer in [1, 2, 5, 50] {
            let mut rig = rig_with(|demux| demux.budget(budget));
            let sink = rig.parked_under(1, |attach| attach.buffer(buffer));
            rig.send(1_001..1_004);
            rig.input.extend(1_004..1_020);
            rig.open(&sink);
            assert_eq!(
                sink.items(),
                (1_001..1_020).collect::<Vec<_>>(),
                "budget {budget}, buffer {buffer}"
            );
        }
    }
}

#[test]
fn an_item_that_comes_before_the_woken_sink_is_polled_does_not_overtake_its_queue() {
    // Turns are so short that items are read before all woken sinks were polled.
    for budget in 1..=4 {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sinks: Vec<_> =
            (0..10).map(|key| rig.parked_under(key, |attach| attach.buffer(3))).collect();
        rig.send((0..10).map(|key| key * 1_000 + 1));
        rig.input.extend((2..5).flat_map(|n| (0..10).map(move |key| key * 1_000 + n)));
        sinks.iter().for_each(SinkHandle::open);
        rig.sleep();
        for (key, sink) in (0..).zip(&sinks) {
            assert_eq!(sink.items(), (1..5).map(|n| key * 1_000 + n).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_held_item_comes_after_the_queue_and_before_all_later_ones() {
    for buffer in 0..4 {
        let mut rig = rig();
        let sink = rig.parked_under(1, |attach| attach.buffer(buffer));
        rig.send(1_001..1_011);
        for taken in 1..=10 {
            sink.allow(1);
            rig.sleep();
            assert_eq!(sink.items(), (1_001..=1_000 + taken).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_gate_that_opens_while_the_item_is_read_does_not_let_it_overtake() {
    let mut rig = rig();
    let sink = rig.parked_under(1, |attach| attach.buffer(3));
    rig.send([1_001, 1_002]);
    let gate = sink.clone();
    rig.input.action(move || gate.open());
    rig.send([1_003, 1_004]);
    assert_eq!(sink.items(), [1_001, 1_002, 1_003, 1_004]);
}

#[test]
fn an_item_that_orders_overtook_keeps_its_place() {
    for budget in 1..=4 {
        let mut rig = rig_with(|demux| demux.budget(budget));
        let sink = rig.attach(1, "a");
        rig.send([1_001]);
        let orders = rig.orders.clone();
        rig.input.action(move || orders.extend((0..10).map(|_| Order::Detach(50))));
        rig.send([1_002, 1_003]);
        assert_eq!(sink.items(), [1_001, 1_002, 1_003], "budget {budget}");
    }
}

// Another sink for the key.

#[test]
fn an_item_that_comes_while_a_backlog_beyond_the_buffer_drains_does_not_overtake_it() {
    for budget in 1..=8 {
        let mut rig = rig_with(|demux| demux.budget(budget));
        rig.parked_under(1, |attach| attach.buffer(20));
        rig.send(1_001..1_040); // twenty queued, one held, eighteen unread
        let new = rig.attach(1, "new");
        assert_eq!(new.items(), (1_001..1_040).collect::<Vec<_>>(), "budget {budget}");
    }
}

// Catch-all and groups.

#[test]
fn all_members_of_a_key_get_their_items_in_order() {
    let mut rig = rig_with(Demux::multicast);
    let waits = rig.parked_under(1, |attach| attach.buffer(1));
    let open = rig.attach(1, "a");
    let queues = rig.parked_under(1, |attach| attach.buffer(20));
    rig.send(1_001..1_008);
    for _ in 0..4 {
        waits.allow(1);
        rig.sleep();
        queues.allow(2);
        rig.sleep();
    }
    rig.open(&waits);
    rig.open(&queues);
    for sink in [waits, open, queues] {
        assert_eq!(sink.items(), (1_001..1_008).collect::<Vec<_>>());
    }
}

// Random events.

#[test]
fn gates_that_open_and_shut_at_random_change_no_order() {
    for seed in 1..=30 {
        let mut dice = Dice::new(seed);
        let budget = 1 + dice.below(9) as usize;
        let mut rig = rig_with(|demux| demux.budget(budget).flush_every(3));
        let sinks: Vec<_> = (0..5)
            .map(|key| rig.parked_under(key, |attach| attach.buffer(key as usize % 4)))
            .collect();
        let mut expected = vec![Vec::new(); 5];
        for n in 0..400 {
            let key = dice.below(5);
            let item = key * 1_000 + n;
            expected[key as usize].push(item);
            rig.input.push(item);
        }
        for _ in 0..2_000 {
            let sink = &sinks[dice.below(5) as usize];
            match dice.below(4) {
                0 => sink.allow(1),
                1 => sink.allow(3),
                2 => sink.park(),
                _ => sink.stutter(Op::Ready, 1),
            }
            let turns = dice.below(3) as usize;
            assert!(rig.task.turns(turns).is_pending());
        }
        sinks.iter().for_each(SinkHandle::open);
        rig.sleep();
        for (sink, expected) in sinks.iter().zip(&expected) {
            assert_eq!(&sink.items(), expected, "seed {seed}");
        }
    }
}
