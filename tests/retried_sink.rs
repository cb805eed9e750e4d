//! A sink that answers `Pending` late in a turn is polled once more in the next one, for `poll_ready` and
//! for nothing else (guarantee 4): its waker has not fired, so a flush that is pending is not repeated.

mod common;

use common::{Op, Rig};
use stream_demux::Overflow;

#[test]
fn pending_flush_is_not_repeated_when_a_sink_is_retried() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        let mut rig = Rig::new();
        let a = rig.attach_on(1, "a", |attach| attach.overflow(overflow).buffer(2));
        rig.attach(2, "b");
        a.hold(Op::Flush);
        rig.input.push(101);
        rig.lines();
        assert_eq!((a.count(Op::Ready), a.count(Op::Flush)), (1, 1), "{overflow:?}");

        a.park();
        rig.input.extend(std::iter::repeat_n(201, 64));
        rig.input.push(102);
        rig.lines();
        assert_eq!(a.count(Op::Ready), 3, "{overflow:?}: not polled again");
        assert_eq!(a.count(Op::Flush), 1, "{overflow:?}: flushed again");

        a.release(Op::Flush);
        a.open();
        rig.lines();
        assert_eq!((a.items(), a.flushed()), (vec![101, 102], 2), "{overflow:?}");
    }
}
