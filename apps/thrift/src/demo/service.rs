//! The service itself, as simple as its IDL.

#![warn(unused, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use thrift::{ApplicationErrorKind, OrderedFloat};
use tokio::time::sleep;

use super::{Demo, Forbidden, OneOfEach};
use crate::error::Error;

/// Upper limit of the delay of `later`, in milliseconds, because a waiting call holds memory.
const LATEST: u64 = 60_000;

/// Implements the service of the IDL.
#[derive(Debug, Default)]
pub struct Example {
    notes: AtomicI64,
}

fn overflow() -> Error {
    let what = "the sum exceeds 64 bits".to_owned();
    Error::Refused(ApplicationErrorKind::InternalError, what)
}

impl Demo for Example {
    async fn ping(&self) -> Result<(), Error> {
        Ok(())
    }
    async fn add(&self, left: i64, right: i64) -> Result<i64, Error> {
        left.checked_add(right).ok_or_else(overflow)
    }
    async fn echo(&self, text: String) -> Result<String, Error> {
        Ok(text)
    }
    async fn later(&self, text: String, millis: i32) -> Result<String, Error> {
        let millis = millis.try_into().unwrap_or(0);
        if millis > LATEST {
            let what = format!("{millis} milliseconds, more than {LATEST}");
            return Err(Error::Refused(ApplicationErrorKind::InternalError, what));
        }
        sleep(Duration::from_millis(millis)).await;
        Ok(text)
    }
    async fn each(&self, value: OneOfEach) -> Result<OneOfEach, Error> {
        Ok(value)
    }
    async fn sum(&self, values: Vec<i64>) -> Result<i64, Error> {
        values.into_iter().try_fold(0, i64::checked_add).ok_or_else(overflow)
    }
    async fn count(&self, words: Vec<String>) -> Result<BTreeMap<String, i32>, Error> {
        let mut counts = BTreeMap::new();
        for word in words {
            if word.is_empty() {
                return Err(Error::Declared(Arc::new(Forbidden { word })));
            }
            *counts.entry(word).or_insert(0) += 1;
        }
        Ok(counts)
    }
    async fn note(&self, _text: String) {
        self.notes.fetch_add(1, Relaxed);
    }
    async fn notes(&self) -> Result<i64, Error> {
        Ok(self.notes.load(Relaxed))
    }
}

/// Returns the value that Apache Thrift's own tests use.
#[must_use]
pub fn one_of_each() -> OneOfEach {
    OneOfEach {
        im_true: true,
        im_false: false,
        a_bite: 0x7f,
        integer16: 27_000,
        integer32: 1 << 24,
        integer64: 6_000 * 1_000 * 1_000,
        double_precision: OrderedFloat(std::f64::consts::PI),
        some_characters: "JSON THIS! \"\u{1}".to_owned(),
        zomg_unicode: "\u{d7}\n\u{7}\t".to_owned(),
        what_who: false,
        base64: (1..=255).collect(),
        byte_list: vec![1, 2, 3],
        i16_list: vec![1, 2, 3],
        i64_list: vec![1, 2, 3],
    }
}
