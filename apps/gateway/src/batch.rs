//! `POST /publish`: many messages in one request, one JSON object a line.
//!
//! All lines are checked before the first is published, so that a batch with a mistake can be
//! corrected and posted again as a whole.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::access;
use crate::gateway::Gateway;
use crate::http::{Refusal, TIMEOUT, read, refuse_if_draining, timed_out, too_large};
use crate::line::{Line, LineError};

/// Long batches that are published at a time: a few are enough to keep the demux or the broker busy.
/// Further ones wait.
const AT_ONCE: usize = 16;
/// A batch of more lines is long. The lines of a batch take some times the memory of its body, if they
/// are short, so those of long ones have to wait. Short ones take 16 KiB or so, and do not wait for
/// batches that the broker takes seconds to confirm: it confirms the messages of all in turn.
const SHORT: usize = 128;

/// Limits how many long batches are published at a time, and the bytes of all batches, which may also
/// be arriving or waiting. A body takes bytes only as they arrive, so connections that send nothing
/// hold up no others.
///
/// The first `free` bytes of a body are not limited, so that bodies that do not go on to arrive hold up
/// only larger ones. `free` is `--max-body`: a connection may have as many bytes anyway, in the body
/// of a single message.
pub struct Batches {
    places: Semaphore,
    bytes: Semaphore,
    free: usize,
    /// Held by a body that goes on to arrive without bytes: if others have used them all, one is
    /// still completed after the other.
    last: Semaphore,
}

/// The bytes of one body.
pub struct Room<'a> {
    of: &'a Batches,
    /// The bytes that have arrived, with those that wait for room.
    arrived: usize,
    bytes: Option<SemaphorePermit<'a>>,
    last: Option<SemaphorePermit<'a>>,
}

impl Batches {
    pub fn new(max_batch: usize, max_body: usize) -> Self {
        let bytes = max_batch.saturating_mul(AT_ONCE).min(Semaphore::MAX_PERMITS);
        let new = Semaphore::new;
        Self { places: new(AT_ONCE), bytes: new(bytes), free: max_body, last: new(1) }
    }

    /// Waits for a place, which a short batch does not need.
    async fn place(&self, body: &[u8]) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        let lines = body.split(|byte| *byte == b'\n').take(SHORT + 1).count();
        if lines <= SHORT {
            return Ok(None);
        }
        let place = timeout(TIMEOUT, self.places.acquire()).await;
        Ok(place.map_err(|_| timed_out("too many long batches are in progress"))?.ok())
    }

    fn room(&self) -> Room<'_> {
        Room { of: self, arrived: 0, bytes: None, last: None }
    }
}

impl Room<'_> {
    /// Takes bytes for the next part of the body, when there are some.
    pub async fn take(&mut self, bytes: usize) {
        let Self { of, arrived, bytes: taken, last } = self;
        *arrived += bytes;
        let has = taken.as_ref().map_or(0, SemaphorePermit::num_permits);
        let lacking = arrived.saturating_sub(of.free).saturating_sub(has);
        if lacking == 0 || last.is_some() {
            return;
        }
        tokio::select! {
            biased;
            Ok(more) = of.bytes.acquire_many(lacking.try_into().unwrap_or(u32::MAX)) => {
                match taken {
                    Some(taken) => taken.merge(more),
                    none => *none = Some(more),
                }
            }
            Ok(permit) = of.last.acquire() => *last = Some(permit),
            else => {} // the semaphores are never closed
        }
    }
}

/// Why a batch, or a part of it, was not taken.
struct NotTaken {
    refusal: Refusal,
    /// The first line that was not taken.
    line: Option<usize>,
    taken: usize,
    /// All lines that were not taken, if others were.
    failed: Vec<usize>,
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, line: None, taken: 0, failed: Vec::new() }
    }
}

impl IntoResponse for NotTaken {
    fn into_response(self) -> Response {
        let Self { refusal, line, taken, failed } = self;
        let mut more = json!({ "taken": taken });
        if let Some(line) = line {
            more["line"] = line.into();
        }
        if taken > 0 {
            more["failed"] = failed.into();
        }
        refusal.respond(more)
    }
}

pub async fn publish(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let _until_it_is_answered = gateway.posts.token();
    let published = try_publish(&gateway, &headers, body).await;
    let taken = published.as_ref().map_or_else(|not_taken| not_taken.taken, |taken| *taken);
    gateway.board.taken.inc_by(taken as u64);
    match published {
        Ok(taken) => (StatusCode::ACCEPTED, Json(json!({ "taken": taken }))).into_response(),
        Err(not_taken) => {
            let lines = not_taken.failed.len().max(1) as u64;
            gateway.board.published.with_label_values(&[not_taken.refusal.code]).inc_by(lines);
            not_taken.into_response()
        }
    }
}

async fn try_publish(
    gateway: &Gateway,
    headers: &HeaderMap,
    body: Body,
) -> Result<usize, NotTaken> {
    access::check_origin(gateway, headers)?;
    access::check_token(gateway, headers)?;
    refuse_if_draining(gateway)?;
    let most = gateway.config.max_batch;
    let mut room = gateway.batches.room();
    let what = || format!("a batch has at most {most} bytes");
    let waits = headers.contains_key(header::EXPECT);
    let body = read(body, most, what, waits, Some(&mut room)).await?;
    let _place = gateway.batches.place(&body).await?;
    let (numbers, lines) = parse(gateway, &body)?;
    let done = gateway.source.publish_all(&lines).await;
    let failed = numbers.iter().zip(&done).filter(|(_, done)| done.is_err());
    let failed: Vec<_> = failed.map(|(number, _)| *number).collect();
    let Some(Err(error)) = done.iter().find(|done| done.is_err()) else { return Ok(lines.len()) };
    let (line, taken) = (failed[0], lines.len() - failed.len());
    let mut refusal = Refusal::from(*error);
    refusal.message =
        format!("line {line}: {}; {taken} of {} were taken", refusal.message, lines.len());
    Err(NotTaken { refusal, line: Some(line), taken, failed })
}

/// Returns the numbers and the contents of the lines that are not blank.
fn parse<'a>(gateway: &Gateway, body: &'a [u8]) -> Result<(Vec<usize>, Vec<Line<'a>>), NotTaken> {
    let most = gateway.config.max_body;
    let (mut numbers, mut lines) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |mut refusal: Refusal| {
            refusal.message = format!("line {number}: {}; nothing was taken", refusal.message);
            NotTaken { line: Some(number), ..refusal.into() }
        };
        let bad = |LineError(code, what)| wrong(Refusal::new(StatusCode::BAD_REQUEST, code, what));
        let line = Line::parse(line).map_err(bad)?;
        Gateway::check_key(&line.key).map_err(|what| bad(LineError("bad_key", what.to_owned())))?;
        if line.body.len() > most {
            return Err(wrong(too_large(&format!("a message has at most {most} bytes"))));
        }
        numbers.push(number);
        lines.push(line);
    }
    if lines.is_empty() {
        let what = "there is no message: one JSON object a line, or POST /publish/KEY";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", what).into());
    }
    Ok((numbers, lines))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn short_batches_do_not_wait_for_long_ones() {
        let (batches, long) = (Batches::new(1_000, 100), vec![b'\n'; SHORT]);
        let place = |body| batches.place(body).now_or_never().map(Result::unwrap);
        let places: Vec<_> = (0..AT_ONCE).map(|_| place(&long).unwrap().unwrap()).collect();
        assert!(matches!(place(&long[1..]), Some(None)));
        assert!(place(&long).is_none(), "it waits");
        drop(places);
        assert!(place(&long).unwrap().is_some());
    }

    #[test]
    fn bodies_that_do_not_go_on_hold_up_only_larger_ones() {
        let batches = Batches::new(1_000, 100);
        // 400 bytes of each are limited: forty take all, and the next one takes the place of the last.
        let mut stopped: Vec<_> = (0..42).map(|_| batches.room()).collect();
        for room in &mut stopped {
            room.take(500).now_or_never();
        }
        let mut small = batches.room();
        assert_eq!(small.take(60).now_or_never(), Some(()));
        assert_eq!(small.take(40).now_or_never(), Some(()));
        assert_eq!(small.take(1).now_or_never(), None, "it is not small any more");
        drop(stopped);
        assert_eq!(small.take(800).now_or_never(), Some(()));
        assert_eq!(small.bytes.map(|bytes| bytes.num_permits()), Some(801));
    }
}
