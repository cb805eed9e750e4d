//! Guarantee 2: the items of one attachment reach its sink in the order of the input, while its
//! queue drains in turns of any length. `random_events` checks it whatever happens.

use crate::common::{Rig, SinkHandle, Split, Terms};

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
fn an_item_beyond_the_buffer_comes_after_the_queue_and_before_all_later_ones() {
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
