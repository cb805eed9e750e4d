//! A state in which the demux may be, as far as can be seen.

use std::collections::{BTreeMap, VecDeque};

use stream_demux::{Discarded, Overflow};

use super::super::{Op, StreamHandle};
use super::event::{EndReason, Event, Id, OrderKind, Outcome, Request};
use super::monitor::{SinkFacts, View};
use super::script::Settings;
use super::{KEYS, MAX_BELIEFS};

pub(super) const FINISHED: u8 = 1;
pub(super) const REQUESTED: u8 = 2;
pub(super) const REPLACED: u8 = 4;
pub(super) const LIMITED: u8 = 8;
pub(super) const REFUSED: u8 = 16;
pub(super) fn dedup(beliefs: &mut Vec<State>) {
    let mut at = 1;
    while at < beliefs.len() {
        if beliefs[..at].contains(&beliefs[at]) {
            beliefs.swap_remove(at);
        } else {
            at += 1;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    Unapplied,
    Receiving,
    /// `told`: it knows; else it is one of those that are leaving because the input is over.
    Leaving {
        reasons: u8,
        told: bool,
    },
    /// It is being removed: so is what waited for it.
    Removing {
        end: EndReason,
        discards: VecDeque<u32>,
        dropped: bool,
    },
    Gone,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attachment {
    pub(super) key: u8,
    pub(super) buffer: usize,
    pub(super) overflow: Overflow,
    pub(super) limit: Option<u64>,
    pub(super) keep_existing: bool,
    pub(super) catch_all: bool,
    pub(super) wish: Request,
    /// A lease wished it to leave, and nothing more when it did.
    pub(super) may_leave: bool,
    pub(super) stage: Stage,
    pub(super) announced: bool,
    pub(super) queue: VecDeque<u32>,
    pub(super) accepted: u64,
}

impl Attachment {
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < self.buffer
    }

    pub(super) fn waits(&self) -> bool {
        self.overflow == Overflow::Wait
    }

    /// It is leaving because the input is over, as far as is known.
    pub(super) fn was_told_with_all(&self) -> bool {
        self.stage == Stage::Leaving { reasons: FINISHED, told: false }
    }

    pub(super) fn needs_no_flush(&self) -> bool {
        match self.stage {
            Stage::Leaving { .. } => self.queue.is_empty(),
            Stage::Receiving => false,
            Stage::Unapplied | Stage::Removing { .. } | Stage::Gone => true,
        }
    }
}

/// The item that was read last, until its fate is decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hand {
    pub(super) seq: u32,
    /// Somebody was asked to admit it.
    pub(super) routed: bool,
    pub(super) caught: bool,
    pub(super) to_ask: Vec<Id>,
    /// Admitted, and not yet settled.
    pub(super) wanted: Vec<Id>,
    /// It had to wait; for these in turn.
    pub(super) blocked: Vec<Id>,
    /// It waits for nobody any more: who has no room overflows.
    pub(super) let_go: bool,
}

/// One way to explain what was seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) settings: (bool, usize, Overflow),
    pub(super) groups: [Vec<Id>; KEYS as usize],
    pub(super) catch_all: Option<Id>,
    pub(super) hand: Option<Hand>,
    pub(super) said: Option<Id>,
    pub(super) refusals: Vec<(Id, u32)>,
    /// The surplus of a limited successor.
    pub(super) surplus: VecDeque<u32>,
    /// An item held for several who were all evicted: one of them discards it.
    pub(super) orphan: Option<(u32, Vec<Id>)>,
    pub(super) over: bool,
    /// `Finish` waits for the item that orders overtook.
    pub(super) finishing: bool,
    pub(super) unmatched: u64,
    pub(super) delivered: u64,
    pub(super) discarded: u64,
    pub(super) lost: u64,
    pub(super) attached: u64,
    pub(super) detached: u64,
    /// The largest group there was.
    pub(super) widest: usize,
    /// Last, because states are compared in this order, and differ in what is above if they do.
    pub(super) atts: Vec<Attachment>,
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings: (settings.multicast, settings.buffer, settings.overflow),
            atts: Vec::new(),
            groups: Default::default(),
            catch_all: None,
            hand: None,
            said: None,
            refusals: Vec::new(),
            surplus: VecDeque::new(),
            orphan: None,
            over: false,
            finishing: false,
            unmatched: 0,
            delivered: 0,
            discarded: 0,
            lost: 0,
            attached: 0,
            detached: 0,
            widest: 1,
        }
    }

    // -- what may have happened unseen --

    /// These beliefs, and what they may have become before `event`, as far as `event` can tell the
    /// difference. `None`: that is too much to follow.
    pub(super) fn possible(
        mut found: Vec<Self>,
        event: &Event,
        recs: &[SinkFacts],
        keys: &BTreeMap<u32, u8>,
    ) -> Option<Vec<Self>> {
        let rest = matches!(event, Event::Rest { .. } | Event::Completed);
        if event.is_outside() && !rest {
            return Some(found);
        }
        if rest && matches!(event, Event::Rest { asleep: true, .. }) {
            // Before it sleeps, every wish has been heard.
            for belief in &mut found {
                for att in 0..belief.atts.len() {
                    if belief.is_wavering(att) {
                        belief.leave(att, REQUESTED, true);
                    }
                }
            }
            dedup(&mut found);
        }
        let mut at = 0;
        while at < found.len() {
            let mut more = Vec::new();
            found[at].unseen(event, recs, keys, &mut more);
            for other in more {
                if !found.contains(&other) {
                    found.push(other);
                }
            }
            if found.len() > MAX_BELIEFS {
                return None;
            }
            at += 1;
        }
        Some(found)
    }

    /// A lease wished it to leave, and whether it has is not known.
    pub(super) fn is_wavering(&self, att: Id) -> bool {
        let Attachment { may_leave, stage, .. } = &self.atts[att];
        *stage == Stage::Receiving && *may_leave
    }

    /// What this belief may become in one unseen step.
    pub(super) fn unseen(
        &self,
        event: &Event,
        recs: &[SinkFacts],
        keys: &BTreeMap<u32, u8>,
        more: &mut Vec<Self>,
    ) {
        for att in (0..self.atts.len()).filter(|&att| self.is_wavering(att)) {
            let key = self.atts[att].key;
            let matters = self.wants(att)
                || match *event {
                    Event::Order(OrderKind::Attach(new)) => self.atts[new].key == key,
                    Event::Admit(_, seq, _) | Event::Unmatched(seq) => {
                        keys.get(&seq) == Some(&key) || self.catch_all == Some(att)
                    }
                    Event::Close(closed, _) => closed == att,
                    _ => false,
                };
            if matters {
                let mut other = self.clone();
                other.leave(att, REQUESTED, true);
                more.push(other);
            }
        }
        let Some(hand) = self.hand.as_ref().filter(|hand| hand.routed && !hand.let_go) else {
            return;
        };
        if self.over && hand.to_ask.is_empty() {
            for &att in &hand.wanted {
                let mut other = self.clone();
                other.leave(att, FINISHED, false);
                more.push(other);
            }
        }
        if !hand.blocked.is_empty() && self.said.is_none() && self.takeable(recs) {
            let mut other = self.clone();
            other.let_go();
            more.push(other);
        }
    }

    // -- the item in hand --

    pub(super) fn wants(&self, att: Id) -> bool {
        self.hand.as_ref().is_some_and(|hand| hand.routed && hand.wanted.contains(&att))
    }

    /// Takes `att` off the list of those who want the item in hand. Its number, and whether it was the
    /// last.
    pub(super) fn settle(&mut self, att: Id) -> Option<(u32, bool)> {
        let hand = self.hand.as_mut().filter(|hand| hand.routed)?;
        let at = hand.wanted.iter().position(|&other| other == att)?;
        hand.wanted.remove(at);
        let seq = hand.seq;
        let last = hand.wanted.is_empty() && hand.to_ask.is_empty();
        if last {
            self.hand = None;
        }
        Some((seq, last))
    }

    /// Is nobody in the way of the item in hand?
    pub(super) fn takeable(&self, recs: &[SinkFacts]) -> bool {
        self.hand.as_ref().is_some_and(|hand| {
            hand.to_ask.is_empty()
                && hand.wanted.iter().all(|&att| {
                    let tenant = &self.atts[att];
                    !tenant.waits() || tenant.has_room() || recs[att].promised
                })
        })
    }

    /// An item that never had to wait goes on at once.
    pub(super) fn advance(&mut self, recs: &[SinkFacts]) {
        let new = |hand: &Hand| hand.routed && !hand.let_go && hand.blocked.is_empty();
        if self.hand.as_ref().is_some_and(new) && self.takeable(recs) {
            self.let_go();
        }
    }

    /// Those who have room queue the item; the others must send or overflow.
    pub(super) fn let_go(&mut self) {
        let Some(hand) = &mut self.hand else { return };
        hand.let_go = true;
        for att in hand.wanted.clone() {
            if self.atts[att].has_room() {
                self.join_queue(att);
            }
        }
    }

    pub(super) fn join_queue(&mut self, att: Id) {
        if let Some((seq, _)) = self.settle(att) {
            self.atts[att].queue.push_back(seq);
            self.accept(att);
        }
    }

    pub(super) fn accept(&mut self, att: Id) {
        let tenant = &mut self.atts[att];
        tenant.accepted += 1;
        if tenant.limit.is_none_or(|limit| tenant.accepted < limit) {
            return;
        }
        match &mut tenant.stage {
            Stage::Receiving => self.leave(att, LIMITED, true),
            Stage::Leaving { reasons, told: false } => *reasons |= LIMITED,
            _ => {}
        }
    }

    // -- coming and going --

    pub(super) fn unlink(&mut self, att: Id) {
        self.groups[usize::from(self.atts[att].key)].retain(|&other| other != att);
        if self.catch_all == Some(att) {
            self.catch_all = None;
        }
    }

    /// It receives nothing more, and takes its copy of the item in hand along.
    pub(super) fn leave(&mut self, att: Id, reasons: u8, told: bool) {
        if let Some((seq, _)) = self.settle(att) {
            self.atts[att].queue.push_back(seq);
        }
        self.unlink(att);
        self.atts[att].stage = Stage::Leaving { reasons, told };
    }

    pub(super) fn remove(&mut self, att: Id, end: EndReason) {
        let mut discards = std::mem::take(&mut self.atts[att].queue);
        if let Some((seq, last)) = self.settle(att) {
            if last || end != EndReason::Evicted {
                discards.push_back(seq);
            }
        }
        self.unlink(att);
        self.atts[att].stage = Stage::Removing { end, discards, dropped: false };
    }

    /// Why `att`, which nothing visible has ended, may be seen going.
    pub(super) fn may_go(&self, att: Id, recs: &[SinkFacts]) -> Vec<EndReason> {
        let tenant = &self.atts[att];
        let mut why = Vec::new();
        if !matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. }) {
            return why;
        }
        if tenant.wish == Request::Evict {
            why.push(EndReason::Evicted);
        }
        let evicts = tenant.overflow == Overflow::Evict && self.overflows(att, recs);
        if evicts {
            why.push(EndReason::Overflowed);
        }
        why
    }

    /// Has `att` no room for the item in hand, and its sink no use for it?
    pub(super) fn overflows(&self, att: Id, recs: &[SinkFacts]) -> bool {
        self.wants(att)
            && self.hand.as_ref().is_some_and(|hand| hand.let_go)
            && !self.atts[att].has_room()
            && recs[att].parked()
    }

    pub(super) fn apply(&mut self, what: OrderKind) {
        match what {
            OrderKind::Attach(att) => self.attach(att),
            OrderKind::Detach(key) => {
                for att in self.groups[usize::from(key)].clone() {
                    self.leave(att, REQUESTED, true);
                }
                for tenant in self.atts.iter_mut().filter(|tenant| tenant.key == key) {
                    if let Stage::Leaving { reasons, told: false } = &mut tenant.stage {
                        *reasons |= REQUESTED;
                    }
                }
            }
            OrderKind::Evict(key) => self.evict(key),
            OrderKind::Finish if self.over => {}
            OrderKind::Finish if self.hand.as_ref().is_some_and(|hand| !hand.routed) => {
                self.finishing = true;
            }
            OrderKind::Finish => self.over = true,
        }
    }

    pub(super) fn evict(&mut self, key: u8) {
        let gone: Vec<_> = (0..self.atts.len())
            .filter(|&att| {
                let tenant = &self.atts[att];
                let here = matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. });
                here && tenant.key == key
            })
            .collect();
        if let Some(hand) = self.hand.take_if(|hand| {
            hand.routed && hand.wanted.len() > 1 && hand.wanted.iter().all(|att| gone.contains(att))
        }) {
            self.orphan = Some((hand.seq, hand.wanted));
        }
        for att in gone {
            self.remove(att, EndReason::Evicted);
        }
    }

    pub(super) fn attach(&mut self, att: Id) {
        self.attached += 1;
        let (multicast, ..) = self.settings;
        let tenant = &mut self.atts[att];
        let (key, wish) = (usize::from(tenant.key), tenant.wish);
        let taken = self.groups[key].first().copied();
        let mut reasons = 0;
        if wish == Request::Evict {
            let (end, discards) = (EndReason::Evicted, VecDeque::new());
            tenant.stage = Stage::Removing { end, discards, dropped: false };
            return;
        }
        reasons |= if wish == Request::Detach { REQUESTED } else { 0 };
        reasons |= if self.over { FINISHED } else { 0 };
        reasons |= if tenant.limit == Some(0) { LIMITED } else { 0 };
        reasons |= if tenant.keep_existing && taken.is_some() { REFUSED } else { 0 };
        if reasons != 0 {
            tenant.stage = Stage::Leaving { reasons, told: true };
            return;
        }
        tenant.stage = Stage::Receiving;
        let backlog = match taken {
            Some(old) if !multicast => {
                self.leave(old, REPLACED, true);
                std::mem::take(&mut self.atts[old].queue)
            }
            _ => VecDeque::new(),
        };
        self.groups[key].push(att);
        self.widest = self.widest.max(self.groups[key].len());
        if self.atts[att].catch_all {
            self.catch_all = Some(att);
        }
        for seq in backlog {
            if self.atts[att].stage == Stage::Receiving {
                self.atts[att].queue.push_back(seq);
                self.accept(att);
            } else {
                self.surplus.push_back(seq);
            }
        }
        if let Some(hand) = self.hand.as_mut().filter(|hand| hand.routed && !hand.caught) {
            let first = hand.wanted.first().map(|&first| usize::from(self.atts[first].key));
            if multicast && first == Some(key) {
                hand.to_ask.push(att);
            }
        }
    }

    // -- what is seen --

    /// Nothing may be half done now.
    pub(super) fn pause(&self) -> Result<(), String> {
        if let Some(&(att, seq)) = self.refusals.first() {
            return Err(format!("{att} was refused {seq}, and it was not discarded"));
        }
        if let Some(seq) = self.surplus.front() {
            return Err(format!("{seq} is surplus, and was not unmatched"));
        }
        if let Some((seq, _)) = &self.orphan {
            return Err(format!("nobody discarded {seq}"));
        }
        if self.finishing {
            return Err("Finish was applied, and the overtaken item not routed".into());
        }
        for (att, tenant) in self.atts.iter().enumerate() {
            if tenant.stage != Stage::Unapplied && !tenant.announced {
                return Err(format!("{att} was not announced"));
            }
            if let Stage::Removing { end, discards, .. } = &tenant.stage {
                return Err(format!("{att} is to go ({end:?}), with {discards:?} to be discarded"));
            }
        }
        match &self.hand {
            Some(hand) if !hand.to_ask.is_empty() => {
                Err(format!("{:?} were not asked to admit {}", hand.to_ask, hand.seq))
            }
            Some(hand) if hand.routed && (hand.let_go || hand.blocked.is_empty()) => {
                let Hand { seq, wanted, .. } = hand;
                Err(format!("{seq} is neither sent, queued, discarded nor held for {wanted:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The input may be asked.
    pub(super) fn may_read(&self) -> Result<(), String> {
        self.pause()?;
        if let Some(hand) = &self.hand {
            return Err(format!("the input is read while {} is held", hand.seq));
        }
        if let Some(said) = self.said {
            return Err(format!("the input is read, and waits for {said}"));
        }
        if self.over { Err("the input is over".into()) } else { Ok(()) }
    }

    pub(super) fn step(
        mut self,
        event: &Event,
        recs: &[SinkFacts],
        keys: &BTreeMap<u32, u8>,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        match *event {
            Event::Born(_, terms) => {
                let (_, buffer, overflow) = self.settings;
                self.atts.push(Attachment {
                    key: terms.key,
                    buffer: terms.buffer.unwrap_or(buffer),
                    overflow: terms.overflow.unwrap_or(overflow),
                    limit: terms.limit,
                    keep_existing: terms.keep_existing,
                    catch_all: terms.catch_all,
                    wish: Request::Stay,
                    may_leave: false,
                    stage: Stage::Unapplied,
                    announced: false,
                    queue: VecDeque::new(),
                    accepted: 0,
                });
            }
            Event::LeaseEnded(ref held, wish) => {
                for &att in held {
                    let tenant = &mut self.atts[att];
                    if wish > tenant.wish {
                        tenant.wish = wish;
                        tenant.may_leave |= wish == Request::Detach;
                    }
                    match &mut tenant.stage {
                        Stage::Leaving { reasons, told: false } if wish == Request::Detach => {
                            *reasons |= REQUESTED;
                        }
                        _ => {}
                    }
                }
            }
            Event::Read(seq, _) => {
                self.may_read()?;
                self.hand = Some(Hand {
                    seq,
                    routed: false,
                    caught: false,
                    to_ask: Vec::new(),
                    wanted: Vec::new(),
                    blocked: Vec::new(),
                    let_go: false,
                });
            }
            Event::InputPending => self.may_read()?,
            Event::InputEnd => {
                self.may_read()?;
                self.over = true;
            }
            Event::Order(what) => {
                self.pause()?;
                self.apply(what);
            }
            Event::OrdersPending { .. }
            | Event::OrdersEnd
            | Event::Rest { .. }
            | Event::Completed => {
                self.pause()?;
            }
            Event::Ready(att, said) => self.ready(att, said, recs)?,
            Event::Send(att, seq, said) => return self.send(att, seq, said, recs, out),
            Event::Flush(att, said) => {
                match self.present(att)? {
                    Stage::Leaving { told: true, .. } if self.atts[att].queue.is_empty() => {
                        return Err("it is told to close: that flushes".into());
                    }
                    _ => {}
                }
                if said == Outcome::Failed {
                    self.remove(att, EndReason::Failed("poll_flush"));
                    self.advance(recs);
                }
            }
            Event::Close(att, said) => self.close(att, said)?,
            Event::Drop(att) => return self.dropped(att, recs, out),
            Event::Admit(att, seq, admits) => self.admit(att, seq, admits, recs, keys)?,
            Event::Attached(att) => {
                let tenant = &mut self.atts[att];
                if tenant.announced || tenant.stage == Stage::Unapplied {
                    return Err("announced twice, or before its order".into());
                }
                tenant.announced = true;
            }
            Event::Detached(att, why) => self.detached(att, why)?,
            Event::Unmatched(seq) => self.unmatched(seq, keys)?,
            Event::Discarded(att, seq, why) => return self.discarded(att, seq, why, recs, out),
            Event::Blocked(att) => self.blocked(att, recs)?,
            Event::Unblocked(att) => {
                if self.said != Some(att) {
                    return Err(format!("the input waits for {:?}", self.said));
                }
                self.said = None;
            }
            _ => {}
        }
        self.emit(out);
        Ok(())
    }

    /// Done with an event.
    pub(super) fn emit(mut self, out: &mut Vec<Self>) {
        if self.over {
            for att in 0..self.atts.len() {
                if self.atts[att].stage == Stage::Receiving && !self.wants(att) {
                    let wish = self.atts[att].wish;
                    let requested = if wish >= Request::Detach { REQUESTED } else { 0 };
                    self.leave(att, FINISHED | requested, false);
                }
            }
        }
        out.push(self);
    }

    /// The stage of one that may be asked or spoken of.
    pub(super) fn present(&self, att: Id) -> Result<&Stage, String> {
        let tenant = self.atts.get(att).ok_or("there is no such attachment")?;
        match &tenant.stage {
            _ if !tenant.announced => Err("it was not announced".into()),
            stage @ (Stage::Receiving | Stage::Leaving { .. }) => Ok(stage),
            stage => Err(format!("it is {stage:?}")),
        }
    }

    pub(super) fn ready(
        &mut self,
        att: Id,
        said: Outcome,
        recs: &[SinkFacts],
    ) -> Result<(), String> {
        self.present(att)?;
        if self.atts[att].queue.is_empty() && !self.wants(att) {
            return Err("no item waits for it".into());
        }
        if said == Outcome::Failed {
            self.remove(att, EndReason::Failed("poll_ready"));
        }
        self.advance(recs);
        Ok(())
    }

    pub(super) fn send(
        mut self,
        att: Id,
        seq: u32,
        said: Outcome,
        recs: &[SinkFacts],
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        self.present(att)?;
        let failed = said == Outcome::Failed;
        // Is this member alone in the way of the item in hand, if any is?
        let in_hand = self.wants(att).then(|| self.hand.as_ref().map(|hand| hand.seq)).flatten();
        let others_can = self.hand.as_ref().is_some_and(|hand| {
            hand.to_ask.is_empty()
                && hand.wanted.iter().filter(|&&other| other != att).all(|&other| {
                    let tenant = &self.atts[other];
                    !tenant.waits() || tenant.has_room() || recs[other].promised
                })
        });
        let head = self.atts[att].queue.pop_front();
        if head.or(in_hand) != Some(seq) {
            return Err(format!("{head:?} is next, or {in_hand:?}"));
        }
        if failed {
            self.lost += 1;
        } else {
            self.delivered += 1;
        }
        if head.is_none() {
            if !others_can {
                return Err("the item is held back by another member".into());
            }
            self.settle(att);
            if failed {
                self.remove(att, EndReason::Failed("start_send"));
            } else {
                self.accept(att);
            }
            if self.hand.as_ref().is_some_and(|hand| hand.routed && !hand.let_go) {
                self.let_go();
            }
            self.emit(out);
            return Ok(());
        }
        if failed {
            self.remove(att, EndReason::Failed("start_send"));
            self.advance(recs);
            self.emit(out);
            return Ok(());
        }
        // The head made room: the item in hand may have taken it at once.
        if in_hand.is_some() && others_can {
            let mut other = self.clone();
            other.join_queue(att);
            if other.hand.as_ref().is_some_and(|hand| hand.routed && !hand.let_go) {
                other.let_go();
            }
            other.emit(out);
        }
        self.advance(recs);
        self.emit(out);
        Ok(())
    }

    pub(super) fn close(&mut self, att: Id, said: Outcome) -> Result<(), String> {
        let Stage::Leaving { reasons, .. } = *self.present(att)? else {
            return Err("it was not told to leave".into());
        };
        if !self.atts[att].queue.is_empty() {
            return Err(format!("{:?} wait for it", self.atts[att].queue));
        }
        match said {
            Outcome::Done => self.remove(att, EndReason::Left(reasons)),
            Outcome::Failed => self.remove(att, EndReason::Failed("poll_close")),
            Outcome::Pending | Outcome::Stutters => {
                self.atts[att].stage = Stage::Leaving { reasons, told: true };
            }
        }
        Ok(())
    }

    pub(super) fn dropped(
        mut self,
        att: Id,
        recs: &[SinkFacts],
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        if !self.atts[att].announced {
            return Err("it was not announced".into());
        }
        if let Stage::Removing { dropped, .. } = &mut self.atts[att].stage {
            *dropped = true;
            self.emit(out);
            return Ok(());
        }
        let why = self.may_go(att, recs);
        if why.is_empty() {
            return Err(format!("dropped while {:?}", self.atts[att].stage));
        }
        for why in why {
            let mut other = self.clone();
            other.remove(att, why);
            if let Stage::Removing { dropped, .. } = &mut other.atts[att].stage {
                *dropped = true;
            }
            other.advance(recs);
            other.emit(out);
        }
        Ok(())
    }

    pub(super) fn admit(
        &mut self,
        att: Id,
        seq: u32,
        admits: bool,
        recs: &[SinkFacts],
        keys: &BTreeMap<u32, u8>,
    ) -> Result<(), String> {
        self.present(att)?;
        let recipients = self.recipients(keys.get(&seq).copied());
        let (group, caught) = recipients.unwrap_or_default();
        let hand = self.hand.as_mut().filter(|hand| hand.seq == seq).ok_or("it is not in hand")?;
        if !hand.routed {
            hand.routed = true;
            hand.caught = caught;
            hand.to_ask = group;
        }
        let at = hand.to_ask.iter().position(|&other| other == att);
        let at = at.ok_or_else(|| format!("{:?} are to be asked", hand.to_ask))?;
        hand.to_ask.remove(at);
        if admits {
            hand.wanted.push(att);
        } else {
            self.refusals.push((att, seq));
        }
        if hand.to_ask.is_empty() {
            if hand.wanted.is_empty() {
                self.hand = None;
            }
            if std::mem::take(&mut self.finishing) {
                self.over = true;
            }
        }
        self.advance(recs);
        Ok(())
    }

    /// Who gets items with this key, and whether only as the catch-all.
    pub(super) fn recipients(&self, key: Option<u8>) -> Option<(Vec<Id>, bool)> {
        let group = key.and_then(|key| self.groups.get(usize::from(key))).cloned();
        match group.unwrap_or_default() {
            group if !group.is_empty() => Some((group, false)),
            _ => self.catch_all.map(|att| (vec![att], true)),
        }
    }

    pub(super) fn unmatched(&mut self, seq: u32, keys: &BTreeMap<u32, u8>) -> Result<(), String> {
        self.unmatched += 1;
        if self.surplus.front() == Some(&seq) {
            self.surplus.pop_front();
            return Ok(());
        }
        let hand = self.hand.as_ref().filter(|hand| hand.seq == seq && !hand.routed);
        if hand.is_none() {
            return Err("it is not in hand".into());
        }
        if let Some((group, _)) = self.recipients(keys.get(&seq).copied()) {
            return Err(format!("{group:?} are to get it"));
        }
        self.hand = None;
        if std::mem::take(&mut self.finishing) {
            self.over = true;
        }
        Ok(())
    }

    pub(super) fn discarded(
        mut self,
        att: Id,
        seq: u32,
        why: Discarded,
        recs: &[SinkFacts],
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        self.discarded += 1;
        if why == Discarded::NotAdmitted {
            let at = self.refusals.iter().position(|&refused| refused == (att, seq));
            self.refusals.remove(at.ok_or("it was not refused")?);
            self.emit(out);
            return Ok(());
        }
        let tenant = self.atts.get(att).ok_or("there is no such attachment")?;
        if matches!(tenant.stage, Stage::Removing { .. }) {
            self.discard_with(att, seq, why)?;
            self.emit(out);
            return Ok(());
        }
        let mut complaint = format!("it is {:?}", tenant.stage);
        let before = out.len();
        if why == Discarded::Overflowed && self.overflows(att, recs) {
            let mut other = self.clone();
            match other.overflow(att, seq) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        for end in self.may_go(att, recs) {
            let mut other = self.clone();
            other.remove(att, end);
            match other.discard_with(att, seq, why) {
                Ok(()) => other.emit(out),
                Err(error) => complaint = error,
            }
        }
        if out.len() == before { Err(complaint) } else { Ok(()) }
    }

    /// One of what is discarded with an attachment that ends.
    pub(super) fn discard_with(&mut self, att: Id, seq: u32, why: Discarded) -> Result<(), String> {
        let Stage::Removing { end, discards, .. } = &mut self.atts[att].stage else {
            return Err("it is not going".into());
        };
        let expected = match end {
            EndReason::Failed(_) => Discarded::Failed,
            EndReason::Overflowed => Discarded::Overflowed,
            _ => Discarded::Evicted,
        };
        if why != expected {
            return Err(format!("that is {expected:?}"));
        }
        if discards.front() == Some(&seq) {
            discards.pop_front();
            return Ok(());
        }
        let orphaned = |(orphan, of): &mut (u32, Vec<Id>)| *orphan == seq && of.contains(&att);
        if discards.is_empty() && self.orphan.take_if(orphaned).is_some() {
            return Ok(());
        }
        Err(format!("{discards:?} are to be discarded"))
    }

    /// An item that found no room.
    pub(super) fn overflow(&mut self, att: Id, seq: u32) -> Result<(), String> {
        let oldest = match self.atts[att].overflow {
            Overflow::DropNewest => false,
            Overflow::DropOldest => self.atts[att].buffer > 0,
            policy => return Err(format!("the policy is {policy:?}")),
        };
        if oldest {
            let head = self.atts[att].queue.pop_front();
            self.join_queue(att);
            if head == Some(seq) { Ok(()) } else { Err(format!("the oldest is {head:?}")) }
        } else {
            match self.settle(att) {
                Some((newest, _)) if newest == seq => Ok(()),
                newest => Err(format!("the newest is {newest:?}")),
            }
        }
    }

    pub(super) fn detached(&mut self, att: Id, why: EndReason) -> Result<(), String> {
        self.detached += 1;
        if self.said == Some(att) {
            return Err("the input still waits for it".into());
        }
        let tenant = self.atts.get_mut(att).ok_or("there is no such attachment")?;
        let Stage::Removing { end, discards, dropped } = &tenant.stage else {
            return Err(format!("it is {:?}", tenant.stage));
        };
        if !dropped {
            return Err("its sink is not dropped".into());
        }
        if !discards.is_empty() {
            return Err(format!("{discards:?} are to be discarded first"));
        }
        let right = match (*end, why) {
            (EndReason::Left(reasons), EndReason::Left(reason)) => reasons & reason != 0,
            (end, why) => end == why,
        };
        if !right {
            return Err(format!("the reason is {end:?}"));
        }
        tenant.stage = Stage::Gone;
        Ok(())
    }

    pub(super) fn blocked(&mut self, att: Id, recs: &[SinkFacts]) -> Result<(), String> {
        if let Some(said) = self.said {
            return Err(format!("the input waits for {said}"));
        }
        self.present(att)?;
        if !self.wants(att) {
            return Err("it does not want the item in hand".into());
        }
        let tenant = &self.atts[att];
        if !tenant.waits() || tenant.has_room() || !recs[att].parked() {
            return Err("the item need not wait for it".into());
        }
        let Some(hand) = self.hand.as_mut().filter(|hand| !hand.let_go) else {
            return Err("the item was let go".into());
        };
        if hand.blocked.contains(&att) {
            return Err(format!("said twice of {}", hand.seq));
        }
        hand.blocked.push(att);
        self.said = Some(att);
        Ok(())
    }

    // -- between polls --

    pub(super) fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let held = u64::from(self.hand.is_some());
        let queued = self.atts.iter().map(|tenant| tenant.queue.len() as u64).sum::<u64>() + held;
        let known = [
            ("unmatched", self.unmatched, view.totals.unmatched),
            ("delivered", self.delivered, view.totals.delivered),
            ("discarded", self.discarded, view.totals.discarded),
            ("lost", self.lost, view.totals.lost),
            ("queued", queued, view.totals.queued),
            ("attached", self.attached, view.totals.attached),
            ("detached", self.detached, view.totals.detached),
        ];
        for (what, expected, found) in known {
            if expected != found {
                return Err(format!("totals().{what} is {found}, not {expected}"));
            }
        }
        if view.blocked_on != self.said {
            return Err(format!("blocked_on() is {:?}, not {:?}", view.blocked_on, self.said));
        }
        if !self.over {
            let receiving: Vec<_> = self.groups.iter().flatten().copied().collect();
            let sure = receiving.iter().filter(|&&att| !self.is_wavering(att)).count();
            if view.len < sure || view.len > receiving.len() {
                return Err(format!("len() is {}, not {}", view.len, receiving.len()));
            }
            for (group, found) in self.groups.iter().zip(view.keys) {
                let sure = group.iter().any(|&att| !self.is_wavering(att));
                if found && group.is_empty() || !found && sure {
                    return Err(format!("the keys are {:?}, not {:?}", view.keys, self.groups));
                }
            }
        }
        let present =
            |tenant: &Attachment| matches!(tenant.stage, Stage::Receiving | Stage::Leaving { .. });
        if view.completed {
            if !self.over || self.hand.is_some() || self.atts.iter().any(present) {
                return Err("completed too early".into());
            }
            return Ok(());
        }
        if view.asleep { self.rest_asleep(view) } else { Ok(()) }
    }

    /// No sleep with work left.
    pub(super) fn rest_asleep(&mut self, view: &View<'_>) -> Result<(), String> {
        let mut alone = true;
        for (att, tenant) in self.atts.iter_mut().enumerate() {
            match &mut tenant.stage {
                Stage::Receiving if tenant.wish == Request::Detach => {
                    return Err(format!("it sleeps, and {att} was to be detached"));
                }
                Stage::Leaving { told, .. } => *told = true,
                Stage::Receiving => {}
                _ => continue,
            }
            alone = false;
            let leaving = matches!(tenant.stage, Stage::Leaving { .. });
            if tenant.wish == Request::Evict {
                return Err(format!("it sleeps, and {att} was to be evicted"));
            }
            if !tenant.queue.is_empty() && !view.sinks[att].is_waiting(Op::Ready) {
                return Err(format!("it sleeps, and {att} could be sent {:?}", tenant.queue));
            }
            if leaving && tenant.queue.is_empty() && !view.sinks[att].is_closing() {
                return Err(format!("it sleeps, and {att} was not asked to close"));
            }
        }
        if self.over && alone {
            return Err("it sleeps, and everything is done".into());
        }
        if self.over && view.len > 0 {
            return Err(format!("it sleeps, and {} were not told the end", view.len));
        }
        match (&self.hand, self.said) {
            (None, None) => {}
            (Some(hand), Some(said)) if hand.routed => {
                if !self.wants(said) || self.atts[said].has_room() {
                    return Err(format!("it sleeps, and {} need not wait for {said}", hand.seq));
                }
                if !view.sinks[said].is_waiting(Op::Ready) {
                    return Err(format!("it sleeps, and {said} is ready for {}", hand.seq));
                }
                return Ok(());
            }
            (hand, said) => {
                return Err(format!("it sleeps, and holds {hand:?}, blocked on {said:?}"));
            }
        }
        let waits = view.input.is_none_or(StreamHandle::is_waiting);
        if !self.over && !waits {
            Err("it sleeps, and the input can be read".into())
        } else {
            Ok(())
        }
    }
}
