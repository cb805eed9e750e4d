//! Keys that become taken or free, and sinks that are attached on demand.

use super::super::event::Id;
use super::super::facts::Facts;
use super::State;

impl State {
    /// Checks a call of `key_attached`: an attachment that was announced has taken the key.
    pub(super) fn key_attached(&self, key: u8) -> Result<(), String> {
        let group = &self.groups[usize::from(key)];
        if group.iter().any(|&id| self.attachments[id].announced) {
            return Ok(());
        }
        Err(format!("no announced attachment has the key, which is that of {group:?}"))
    }

    /// Handles a call of `key_detached`: the last attachment of the key has stopped receiving,
    /// possibly unseen.
    pub(super) fn key_detached(
        self,
        key: u8,
        facts: &Facts,
        out: &mut Vec<Self>,
    ) -> Result<(), String> {
        let group = &self.groups[usize::from(key)];
        if self.named.is_some_and(|id| self.attachments[id].key == key) {
            return Err("the input still waits for an attachment of this key".into());
        }
        // At the end, all attachments begin to leave, one after the other.
        if self.over || group.is_empty() {
            self.emit(out);
            return Ok(());
        }
        let &[id] = &group[..] else { return Err(format!("{group:?} have the key")) };
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
        if out.len() == before { Err(format!("{id} has the key")) } else { Ok(()) }
    }

    /// Checks that the hooks and the attachments agree on which keys are taken. There is no check
    /// at the end, when all attachments begin to leave, one after the other.
    pub(super) fn check_interest(&self, facts: &Facts) -> Result<(), String> {
        for (key, (group, taken)) in self.groups.iter().zip(facts.keys_taken).enumerate() {
            if taken == group.is_empty() && !self.over {
                return Err(format!("key {key} has {group:?}, but the hooks say taken: {taken}"));
            }
        }
        Ok(())
    }

    /// Checks that `key_detached` was called for the key of `id`, if it is free, before `detached`
    /// is called for `id`.
    pub(super) fn check_key_detached(&self, id: Id, facts: &Facts) -> Result<(), String> {
        let key = usize::from(self.attachments[id].key);
        let freed_it = self.groups[key].is_empty() && self.freed_by[key] == Some(id);
        if facts.keys_taken[key] && freed_it && !self.over {
            return Err("its key is free, but key_detached was not called".into());
        }
        Ok(())
    }

    /// Handles an item that matches no key. `made` is the attachment that is made for it, if any.
    pub(super) fn demanded(
        &mut self,
        seq: u32,
        made: Option<Id>,
        facts: &Facts,
    ) -> Result<(), String> {
        if self.order.is_some() {
            return Err("an order that was read before is not applied".into());
        }
        if self.over {
            return Err("the input is over".into());
        }
        let Some(item) = self.item.as_mut().filter(|item| item.is_unrouted(seq)) else {
            return Err("the item is not to be routed".into());
        };
        if std::mem::replace(&mut item.demanded, true) {
            return Err("called twice".into());
        }
        let leases = std::mem::take(&mut item.leases);
        self.end_leases(&leases).map_err(|id| format!("the lease of {id} has had no effect"))?;
        let group = facts.keys.get(&seq).and_then(|key| self.groups.get(usize::from(*key)));
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            return Err(format!("{group:?} have its key"));
        }
        if let Some(id) = made {
            // The attachment costs one, even beyond the budget: the item may have been read with
            // the last of the budget.
            self.attach(id);
            if let Some(item) = &mut self.item {
                item.made = made;
            }
        }
        Ok(())
    }

    /// Checks that a sink was requested for an item that matches no key.
    pub(super) fn check_demanded(&self, key: Option<u8>) -> Result<(), String> {
        let group = key.and_then(|key| self.groups.get(usize::from(key)));
        let matches = group.is_some_and(|group| !group.is_empty());
        let asked = self.item.as_ref().is_some_and(|item| item.demanded);
        // It is not known whether a sink was requested for an item that `Finish` has overtaken.
        if !self.on_demand || matches || asked || self.finishing || self.over {
            return Ok(());
        }
        Err("no sink was requested for an item that matches no key".into())
    }
}
