//! [`Outbox`]: what a writer is about to write, in this order: the rest of an item, a notice of a
//! loss, and items from the log.

use std::io::IoSlice;

use super::log::PIECES;
use super::segment::Piece;

/// A list of pieces keeps room for this many. A writer that keeps up looks at one or two.
const PIECES_KEPT: usize = 8;

/// Appends a notice of a loss to a buffer.
pub(super) type OnLost = Box<dyn FnMut(u64, &mut Vec<u8>) + Send>;

#[derive(Debug)]
pub(super) struct Outbox {
    /// What is left of an item in the middle of which a write has ended.
    rest: Option<Piece>,
    notice: Vec<u8>,
    /// How much of the notice is written.
    noticed: usize,
    /// The number of items that are missing before the pieces, and that there is no notice of yet.
    untold: u64,
    /// Items that the log has, too. Empty between two polls.
    pieces: Vec<Piece>,
    /// Everything before this position is written, or is in `rest`, or was lost.
    taken: u64,
    /// The number of items that were written completely.
    items: u64,
    /// The number of bytes that were written.
    bytes: u64,
}

impl Outbox {
    pub(super) fn new(position: u64) -> Self {
        Self {
            rest: None,
            notice: Vec::new(),
            noticed: 0,
            untold: 0,
            pieces: Vec::new(),
            taken: position,
            items: 0,
            bytes: 0,
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn items(&self) -> u64 {
        self.items
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns `true` if an item is partly written.
    pub(super) fn is_within_item(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns `true` if there is something to write that the log does not have.
    fn is_busy(&self) -> bool {
        self.rest.is_some() || !self.notice.is_empty()
    }

    /// Returns `true` if there is nothing to write, and nothing to tell.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_busy() && self.untold == 0 && self.pieces.is_empty()
    }

    /// Where the log puts what follows.
    pub(super) fn pieces(&mut self) -> &mut Vec<Piece> {
        debug_assert!(self.pieces.is_empty());
        &mut self.pieces
    }

    /// Goes on at a later position: the items before it are lost.
    pub(super) fn pass_to(&mut self, position: u64) {
        debug_assert!(position >= self.taken);
        self.taken = position;
    }

    /// This number of items is missing before the pieces.
    pub(super) fn miss(&mut self, items: u64) {
        self.untold += items;
    }

    /// Puts the notice of what is missing before the pieces.
    pub(super) fn tell(&mut self, on_lost: Option<&mut OnLost>) {
        if self.untold == 0 {
            return;
        }
        if self.is_busy() {
            // That is written first, then the notice, and then the pieces.
            self.pieces.clear();
            return;
        }
        let lost = std::mem::take(&mut self.untold);
        if let Some(on_lost) = on_lost {
            on_lost(lost, &mut self.notice);
        }
    }

    /// Lets go of what the log has, too.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        if self.pieces.capacity() > PIECES_KEPT {
            self.pieces = Vec::new();
        }
    }

    /// Fills in what is to be written, and returns it.
    pub(super) fn slices<'a, 'b>(
        &'a self,
        room: &'b mut [IoSlice<'a>; PIECES + 2],
    ) -> &'b [IoSlice<'a>] {
        let rest = self.rest.iter().map(Piece::bytes);
        let notice = [&self.notice[self.noticed..]];
        let pieces = self.pieces.iter().map(Piece::bytes);
        let parts = rest.chain(notice).chain(pieces).filter(|part| !part.is_empty());
        let mut len = 0;
        for (slice, part) in room.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            len += 1;
        }
        &room[..len]
    }

    /// The first bytes of all were written. Forgets the pieces.
    pub(super) fn written(&mut self, mut bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(rest) = &mut self.rest {
            let len = rest.bytes().len();
            if bytes < len {
                rest.skip(bytes);
                self.pieces.clear();
                return;
            }
            bytes -= len;
            self.items += 1;
            self.rest = None;
        }
        let len = self.notice.len() - self.noticed;
        if bytes < len {
            self.noticed += bytes;
            self.pieces.clear();
            return;
        }
        bytes -= len;
        self.notice = Vec::new();
        self.noticed = 0;
        for piece in self.pieces.drain(..) {
            let len = piece.bytes().len();
            if bytes < len {
                let partial = piece.split(bytes);
                self.items += partial.complete as u64;
                self.taken = partial.position;
                self.rest = partial.rest;
                break;
            }
            bytes -= len;
            self.items += piece.len() as u64;
            self.taken = piece.end();
        }
    }
}
