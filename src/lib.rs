//! Split one `Stream` into many `Sink`s by key.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod apply;
mod demux;
mod drive;
mod ext;
mod flush;
mod hooks;
mod hub;
mod key;
mod lease;
mod order;
mod ready;
mod route;
mod slot;
mod table;
mod totals;

pub use crate::demux::Demux;
pub use crate::ext::{Attachable, DemuxStreamExt};
pub use crate::hooks::{Callbacks, Detached, Discarded, Hooks, Recipient};
pub use crate::key::{ByRef, ByValue, DefaultHashBuilder, DefaultHasher};
pub use crate::lease::Lease;
pub use crate::order::{Attach, IntoOrder, Order, Overflow};
pub use crate::totals::Totals;
