//! A rig with several sinks per key.
//!
//! Clones of items are marked: item 7 is shown as `7`, a clone of it as `7'`. The name of a sink is
//! its tag: a hook that is called for `1#2` is called for sink 2.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

use stream_demux::{Lease, Totals};

use super::{SinkHandle, Split, Terms};

/// An item that counts its clones, and knows whether it is a clone.
pub struct Note {
    pub n: u32,
    is_clone: bool,
    clones: Arc<AtomicUsize>,
}

impl Note {
    /// Creates an original, whose clones are counted in `clones`.
    pub fn new(n: u32, clones: &Arc<AtomicUsize>) -> Self {
        Self { n, is_clone: false, clones: Arc::clone(clones) }
    }
}

impl Clone for Note {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, SeqCst);
        Self { n: self.n, is_clone: true, clones: Arc::clone(&self.clones) }
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.n, if self.is_clone { "'" } else { "" })
    }
}

/// A rig with `multicast`, which counts the clones of its items. The key of item `n` is
/// `n / 100`.
pub struct Rig {
    rig: super::Rig<Note>,
    clones: Arc<AtomicUsize>,
}

impl Deref for Rig {
    type Target = super::Rig<Note>;

    fn deref(&self) -> &Self::Target {
        &self.rig
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rig
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::refusing(|_, _| false)
    }

    pub fn with(settings: impl FnOnce(Split<Note>) -> Split<Note>) -> Self {
        Self::of(settings, |_, _| false)
    }

    /// Does not admit the items for which `refuse` returns `true`, given the tag and the item.
    pub fn refusing(refuse: fn(u64, u32) -> bool) -> Self {
        Self::of(|demux| demux, refuse)
    }

    fn of(settings: impl FnOnce(Split<Note>) -> Split<Note>, refuse: fn(u64, u32) -> bool) -> Self {
        // Names of sinks are numbers, so only `attached` and `admit` begin with an `a`, and only
        // the hooks for keys with a `k`.
        let matters = |line: &str| !line.starts_with(['a', 'k']) && !line.ends_with("flushed");
        let rig =
            super::Rig::keyed(|note: &Note| note.n / 100, |demux| settings(demux.multicast()))
                .admitting(move |to, note| !refuse(to.tag, note.n))
                .logging_only(matters);
        Self { rig, clones: Arc::default() }
    }

    /// Logs calls of `admit`, too.
    pub fn logging_admit(self) -> Self {
        self.log.keep_only(|line| {
            !line.starts_with("attached") && !line.starts_with('k') && !line.ends_with("flushed")
        });
        self
    }

    /// Checks that the totals include every clone.
    #[track_caller]
    fn balance(&self) {
        self.rig.balance();
        assert_eq!(self.totals().copies, self.clones.load(SeqCst) as u64);
    }

    #[track_caller]
    pub fn run(&mut self) -> Poll<Totals> {
        let output = self.rig.run();
        self.balance();
        output
    }

    /// Runs one turn, which must not complete the demux. Returns the log.
    #[track_caller]
    pub fn turn(&mut self) -> Vec<String> {
        self.rig.poll();
        self.balance();
        self.take_log()
    }

    /// Runs the demux until it parks. Returns the log.
    #[track_caller]
    pub fn lines(&mut self) -> Vec<String> {
        assert!(self.run().is_pending());
        self.take_log()
    }

    /// The contract does not specify whether `unblocked` is called before or after the item is
    /// sent. This returns the log with `unblocked` before.
    pub fn take_log(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for line in self.log.take() {
            let tag = line.strip_prefix("unblocked ").map(|on| on.rsplit('#').next().unwrap());
            let sends = tag.map_or(0, |tag| {
                let sent = format!("{tag} sent ");
                lines.iter().rev().take_while(|line| line.starts_with(&sent)).count()
            });
            lines.insert(lines.len() - sends, line);
        }
        lines
    }

    /// Queues items without polling the demux.
    pub fn push(&self, items: impl IntoIterator<Item = u32>) {
        let notes: Vec<_> = items.into_iter().map(|n| Note::new(n, &self.clones)).collect();
        self.input.extend(notes);
    }

    #[track_caller]
    pub fn feed(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.push(items);
        self.lines()
    }

    /// Attaches a sink with the tag and name `tag` under key 1, with the settings that `terms`
    /// adds.
    #[track_caller]
    pub fn join_on(
        &mut self,
        tag: u64,
        terms: impl FnOnce(Terms<Note>) -> Terms<Note>,
    ) -> SinkHandle<Note> {
        let handle = self.order(1, tag, |attach| terms(attach.tag(tag)));
        assert!(self.run().is_pending());
        handle
    }

    #[track_caller]
    pub fn join(&mut self, tag: u64) -> SinkHandle<Note> {
        self.join_on(tag, |attach| attach)
    }

    /// Attaches the members 1 to `count`, and parks those in `parked`.
    #[track_caller]
    pub fn group(&mut self, count: u64, parked: &[u64]) -> Vec<SinkHandle<Note>> {
        let members: Vec<_> = (1..=count).map(|tag| self.join(tag)).collect();
        for &tag in parked {
            members[at(tag)].park();
        }
        members
    }

    /// Like `group`, with a lease for each member.
    #[track_caller]
    pub fn leased_group(
        &mut self,
        count: u64,
        parked: &[u64],
    ) -> (Vec<SinkHandle<Note>>, Vec<Lease>) {
        let mut leases: Vec<_> = (0..count).map(|_| Lease::new()).collect();
        let members: Vec<_> = (1..)
            .zip(&mut leases)
            .map(|(tag, lease)| self.join_on(tag, |a| a.leased(lease)))
            .collect();
        for &tag in parked {
            members[at(tag)].park();
        }
        (members, leases)
    }

    pub fn blocked_on(&self) -> Option<u64> {
        self.task.get_ref().blocked_on().map(|on| on.tag)
    }
}

/// Returns the index of the member `tag` in a list that starts with member 1.
pub fn at(tag: u64) -> usize {
    usize::try_from(tag).unwrap() - 1
}
