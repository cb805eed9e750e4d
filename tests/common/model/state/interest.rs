//! Keys that come and go, and sinks that are made on demand.

use super::super::event::Id;
use super::super::facts::Facts;
use super::State;

impl State {
    /// `key_attached` was called: of a key that some attachment has taken, which was announced.
    pub(super) fn key_attached(&self, key: u8) -> Result<(), String> {
        let group = &self.groups[usize::from(key)];
        if group.iter().any(|&id| self.attachments[id].announced) {
            return Ok(());
        }
        Err(format!("{group:?} have taken it"))
    }

    /// `key_detached` was called: the last attachment has stopped to receive, which may not have
    /// been seen otherwise.
    pub(super) fn key_detached(
        self,
        key: u8,
        facts: &Facts,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        let group = &self.groups[usize::from(key)];
        if self.named.is_some_and(|id| self.attachments[id].key == key) {
            return Err("the input still waits for it".into());
        }
        // At the end all are told so, each in its turn.
        if self.over || group.is_empty() {
            self.emit(out);
            return Ok(());
        }
        let &[id] = &group[..] else { return Err(format!("{group:?} have it")) };
        let before = out.len();
        for end in self.unseen_ends(id, facts) {
            let mut other = self.clone();
            other.remove_unseen(id, end, facts);
            other.emit(out);
        }
        let mut other = self.clone();
        if other.evict_next(id) {
            other.emit(out);
        }
        if out.len() == before { Err(format!("{id} has it")) } else { Ok(()) }
    }

    /// Checks that hooks and attachments agree on the keys that are taken. At the end all are told
    /// so, each in its turn.
    pub(super) fn check_interest(&self, facts: &Facts) -> Result<(), String> {
        for (key, (group, told)) in self.groups.iter().zip(facts.told).enumerate() {
            if told == group.is_empty() && !self.over {
                return Err(format!("the key {key} is that of {group:?}, and told: {told}"));
            }
        }
        Ok(())
    }

    /// Checks that it was told that the key of `id` is free before `id` is told to be gone.
    pub(super) fn check_key_is_told(&self, id: Id, facts: &Facts) -> Result<(), String> {
        let key = usize::from(self.attachments[id].key);
        let freed_it = self.groups[key].is_empty() && self.freed_by[key] == Some(id);
        if facts.told[key] && freed_it && !self.over {
            return Err("its key is free, and that was not told".into());
        }
        Ok(())
    }

    /// No key matched the item, and it brings a sink or none.
    pub(super) fn demanded(
        &mut self,
        seq: u32,
        made: Option<Id>,
        facts: &Facts,
    ) -> Result<(), String> {
        if self.order.is_some() {
            return Err("an order was read before, and is not applied".into());
        }
        if self.over {
            return Err("the input is over".into());
        }
        let Some(item) = self.item.as_mut().filter(|item| item.is_unrouted(seq)) else {
            return Err("it is not to be routed".into());
        };
        if std::mem::replace(&mut item.demanded, true) {
            return Err("asked twice".into());
        }
        let leases = std::mem::take(&mut item.leases);
        self.end_leases(&leases).map_err(|id| format!("the lease of {id} has had no effect"))?;
        let group = facts.keys.get(&seq).and_then(|key| self.groups.get(usize::from(*key)));
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            return Err(format!("{group:?} have its key"));
        }
        if let Some(id) = made {
            // It costs one, also beyond the budget: the item was read with the last of that.
            self.attach(id);
            if let Some(item) = &mut self.item {
                item.made = made;
            }
        }
        Ok(())
    }

    /// Checks that an item that matches no key was asked for a sink.
    pub(super) fn check_demanded(&self, key: Option<u8>) -> Result<(), String> {
        let group = key.and_then(|key| self.groups.get(usize::from(key)));
        let matches = group.is_some_and(|group| !group.is_empty());
        let asked = self.item.as_ref().is_some_and(|item| item.demanded);
        // It is not known whether one that `Finish` has overtaken was asked.
        if !self.on_demand || matches || asked || self.finishing || self.over {
            return Ok(());
        }
        Err("it matches no key, and brings none".into())
    }
}
