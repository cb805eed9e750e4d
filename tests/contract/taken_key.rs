//! An order attaches a sink to a key that has one (*Attachments*). The new sink takes over key and
//! queue, and the old sink is flushed and closed in the background.

use crate::common::{Rig, hooks};
use stream_demux::Overflow;

// Replacing.

#[test]
fn queue_that_moves_under_wait_holds_the_input_until_it_fits_the_buffer_of_the_new_sink() {
    for buffer in 0..=4 {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2).tag(1));
        old.park();
        rig.send([101, 102, 103, 104]); // the last one is not read
        let new = rig.order(1, "new", |attach| attach.buffer(buffer).tag(2));
        new.park();
        let logged = hooks(rig.lines());
        let at = |line: &str| logged.iter().position(|other| other == line);
        assert!(at("unblocked 1#1") < at("detached 1#1 Replaced"));
        // What is read fills the buffer, and one item more holds the input.
        let queued = 4.min(buffer + 1).max(3);
        let left = 4 - queued;
        let case = format!("buffer {buffer}");
        assert_eq!(
            (rig.totals().queued, rig.input.left() as u64),
            (queued as u64, left as u64),
            "{case}"
        );
        let blocks = queued > buffer;
        assert_eq!(
            (rig.blocked_on(), at("blocked 1#2").is_some()),
            (blocks.then_some(2), blocks),
            "{case}"
        );
        new.allow(queued.saturating_sub(buffer));
        rig.lines();
        assert_eq!(rig.input.left(), 0, "it fits now: {case}");
        new.open();
        rig.lines();
        assert_eq!((new.items(), old.taken()), (vec![101, 102, 103, 104], 0));
    }
}

#[test]
fn queue_that_moves_to_a_full_sink_under_another_policy_is_cut_to_its_buffer() {
    use Overflow::{DropNewest, DropOldest, Evict};
    let cases: [(Overflow, &[u32], &[u32]); 3] = [
        (DropNewest, &[101, 102], &[103, 104]),
        (DropOldest, &[103, 104], &[101, 102]),
        (Evict, &[], &[101, 102, 103, 104]),
    ];
    for (overflow, kept, discarded) in cases {
        for is_ready in [false, true] {
            let mut rig = Rig::new();
            let old = rig.attach_on(1, "old", |attach| attach.buffer(4).tag(1));
            old.park();
            rig.send([101, 102, 103, 104]);
            let new = rig.order(1, "new", |attach| attach.buffer(2).overflow(overflow).tag(2));
            new.park();
            rig.turn(); // it is in doubt
            assert_eq!(rig.totals().queued, 4, "{overflow:?}");
            if is_ready {
                new.allow(2); // what is left fits
            }
            let lines = hooks(rig.lines());
            let gone = |line: &&String| line.starts_with("discarded");
            let gone: Vec<_> =
                lines.iter().filter(gone).map(|line| line[10..13].to_owned()).collect();
            let expected: Vec<_> = discarded.iter().map(u32::to_string).collect();
            assert_eq!(gone, if is_ready { Vec::new() } else { expected }, "{overflow:?}");
            new.open();
            rig.lines();
            let all = [101, 102, 103, 104];
            assert_eq!(new.items(), if is_ready { &all[..] } else { kept }, "{overflow:?}");
        }
    }
}

/// A client that reconnects and never reads would otherwise fill the memory.
#[test]
fn replacements_that_never_read_let_no_further_item_in() {
    for overflow in [Overflow::Wait, Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict] {
        let mut rig = Rig::with(|demux| demux.budget(1));
        rig.input.endless(|_| 101);
        for n in 0..100 {
            let new = rig.order(1, n, |attach| attach.buffer(2).overflow(overflow));
            new.park();
            for _ in 0..5 {
                rig.turn();
                // The buffer, and what one turn reads.
                assert!(rig.totals().queued <= 3, "{overflow:?}, attachment {n}");
            }
        }
    }
}

// The limit of the new sink.

#[test]
fn moved_items_count_towards_the_limit_and_the_surplus_is_unmatched() {
    for limit in 1..=2 {
        let mut rig = Rig::new();
        let old = rig.attach_on(1, "old", |attach| attach.buffer(2).tag(1));
        old.park();
        rig.send([101, 102, 103]);
        let new = rig.order(1, "new", |attach| attach.limit(limit).tag(2));
        let lines = hooks(rig.lines());
        let surplus: Vec<_> = lines.iter().filter(|line| line.starts_with("unmatched")).collect();
        let expected: Vec<_> = (101 + limit..=103).map(|n| format!("unmatched {n}")).collect();
        assert_eq!(surplus, expected.iter().collect::<Vec<_>>());
        assert_eq!(lines.iter().filter(|line| *line == "detached 1#2 Limited").count(), 1);
        let items: Vec<_> = [101, 102, 103].into_iter().filter(|n| *n <= 100 + limit).collect();
        let taken: Vec<_> = new.items().into_iter().map(u64::from).collect();
        assert_eq!((taken, new.is_closed()), (items, true));
        assert_eq!((rig.len(), rig.totals().queued), (0, 0));
        assert_eq!(hooks(rig.send([104])), ["unmatched 104"]);
    }
}
