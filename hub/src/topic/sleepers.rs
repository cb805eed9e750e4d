//! [`Sleepers`]: the wakers of the readers that wait.

use std::task::Waker;

/// All sleepers are woken at once, which begins a new *night*. A reader that slept in an earlier one
/// is awake without being told.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Vacant places are of readers that left in this night.
    places: Vec<Option<Waker>>,
    vacant: Vec<usize>,
    night: u64,
}

/// Where a reader sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    index: usize,
    night: u64,
}

impl Sleepers {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the reader with this place was not woken.
    pub(super) fn holds(&self, place: Place) -> bool {
        place.night == self.night
    }

    /// Adds a reader.
    pub(super) fn add(&mut self, waker: Waker) -> Place {
        let index = self.vacant.pop().unwrap_or(self.places.len());
        if let Some(place) = self.places.get_mut(index) {
            *place = Some(waker);
        } else {
            self.places.push(Some(waker));
        }
        Place { index, night: self.night }
    }

    /// Sets the waker of a reader that sleeps. Returns the one that it replaces.
    #[must_use = "a waker is dropped after the lock is released"]
    pub(super) fn renew(&mut self, place: Place, waker: &Waker) -> Option<Waker> {
        let known = self.places[place.index].as_mut()?;
        if known.will_wake(waker) { None } else { Some(std::mem::replace(known, waker.clone())) }
    }

    /// Removes a reader, if it sleeps.
    #[must_use = "a waker is dropped after the lock is released"]
    pub(super) fn remove(&mut self, place: Place) -> Option<Waker> {
        if !self.holds(place) {
            return None;
        }
        let waker = self.places[place.index].take();
        self.vacant.push(place.index);
        if self.is_empty() {
            // The room of many that slept at the same time.
            self.places = Vec::new();
            self.vacant = Vec::new();
            self.night += 1;
        }
        waker
    }

    /// Takes all that sleep, for which it leaves this room.
    pub(super) fn rouse(&mut self, into: &mut Vec<Option<Waker>>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.places, into);
        self.vacant.clear();
        self.night += 1;
    }
}
