//! The numbers that decide when sinks are flushed. The package `model` includes this file, so that
//! tests take the numbers from it. Only the unit tests of `patience` and the docs of
//! `flush_every` repeat some.

/// How many further items and copies pay for the flush of each sink that waits for one.
///
/// On loopback TCP with a line codec, a flush is a system call of some microseconds and an item
/// costs some tens of nanoseconds, so about a hundred items should share a flush. With 128, lines
/// to a hundred saturated TCP clients take as long as with a window of 16,384 items whatever the
/// number of sinks. With 32, they take 2.7 times as long.
pub(crate) const PER_SINK: u64 = 128;

/// The least number of further items and copies that pays for flushes, however few they are.
///
/// As much as pays for four. It keeps turns long beside a single busy sink: a turn reads up to
/// 1,024 items, but stops when a flush is due. It also bounds the delay beside few busy sinks
/// whatever they cost: with 20 µs for an item, 512 items take 10 ms.
pub(crate) const LEAST: u64 = 512;

/// How many nanoseconds pay for as much of a flush as an item does, if the demux counts time.
///
/// Several times what an item takes that sinks only store, so that time pays only where items are
/// expensive, or other tasks hold the thread. A flush that is a system call of two microseconds is
/// paid for by 33 µs, and takes 6 % of the time. With half as many nanoseconds, the chat of
/// `hub/benches` on a machine that other processes keep busy took up to a tenth more processor time,
/// because what they take counts as well; with these, it took no more than without a clock.
pub(crate) const NANOS_PER_ITEM: u64 = 256;

/// After how many further items a sink is flushed although nothing has paid for it, unless
/// [`flush_every`](crate::Demux::flush_every) says otherwise.
///
/// It bounds the delay beside so many keys that each gets few items before its flush is due. It is
/// what pays for the flushes of 128 sinks, and takes about a millisecond. With more busy keys,
/// fewer items share a flush; a larger number serves them better, at the price of delay. It counts
/// items and not copies: an item for a group of 10,000 is as much work as 10,000 items, and if
/// copies counted, each member would be flushed for one or two items.
pub(crate) const FLUSH_EVERY: u64 = 16_384;

/// Up to this many sinks are flushed as soon as the input has nothing ready.
///
/// Over TCP a flush takes about 2 µs, and a further turn a tenth of that. Up to 16 flushes cost no
/// more than a turn of a busy runtime, and are not worth the delay.
pub(crate) const FLUSHED_AT_ONCE: usize = 16;

/// For how many turns in a row the demux waits for an item.
///
/// More than the 61 polls after which tokio runs a task again that has used up its cooperative
/// budget. On an otherwise idle runtime so many turns take some microseconds.
pub(crate) const LONGEST_WAIT: u32 = 64;

/// How many turns a wait may take for each item and copy that comes before a turn reads nothing
/// again, to have paid.
///
/// Over TCP a flush costs as much as some ten turns, and an item that comes before its sink is
/// flushed saves one. A wait for the longest time has to bring 16 items, as many as the flushes
/// that would not be worth it. A producer on another thread is still sending when the wait ends, so
/// the turn that ends it may have read only the first few.
pub(crate) const TURNS_PER_ITEM: u64 = 4;

/// After how many batches all sinks are flushed, although more might come. A batch is what a turn
/// reads before the input has nothing ready. A batch that was waited for counts as
/// [several](WAITED_FOR).
///
/// An input that returns a little in each turn would otherwise delay the flush forever. Beside ten
/// tasks that always have 20 µs of work, 512 turns take 105 ms. On an idle runtime, a producer on
/// the same thread fills a channel of 100 again in each turn, so that the window of the flush list
/// is over before. From another thread, a few lines come in each turn, and 512 turns take 2 ms:
/// with 256, lines to a hundred TCP clients take a tenth more time.
pub(crate) const MAX_BATCHES: u32 = 512;

/// How many batches a batch counts for that came after a wait: 86 of them are flushed.
///
/// tokio's budget makes batches of 128 items then, so with a hundred sinks about 110 items share a
/// flush. Such a batch comes after 61 polls of tasks, which are six turns beside ten busy tasks: 86
/// take as long there as 512 of the others. With 16, the lines to a hundred TCP clients take twice
/// the time.
pub(crate) const WAITED_FOR: u32 = 6;

/// After a wait that failed, how many lulls are flushed without waiting, as a power of two: 1, and
/// twice as many each time, up to 64. So if waiting never pays, it is tried in one lull of 65.
pub(crate) const MAX_FAILURES: u32 = 6;
