//! The log on standard error. One event is one line, whatever text is in it.
//!
//! Keys, errors of the broker and other texts come from outside, and scripts rely on the lines. So
//! the escaping is done here, for all fields, and not where something is logged: a value of letters,
//! digits and punctuation is written as it is (`key=tea`), and any other in quotes, as a string
//! literal (`key="a b\n"`). Then no text can end a line, begin a field or control a terminal.
//!
//! Nor can others fill the disk: a line that they can cause at will has a [`Limit`]. And a reader of
//! the log that stops holds up nothing: lines wait in a [queue](queue).

mod queue;

use std::any::Any;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, interval_at};
use tracing::field::{Field, Visit};
use tracing::{error, warn};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt as lines};

use queue::Queue;

/// How many lines of a kind are written in an [`INTERVAL`].
///
/// A line has up to 2 KB, if all 255 bytes of a key are escaped. So a kind writes at most 30 MB a day,
/// and ten lines tell as much about the cause as ten thousand.
const LINES: u64 = 10;
/// In which the lines are counted.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits how often a line is written. The lines that are left out are counted, and their number is
/// written at the end of the interval.
pub struct Limit {
    /// What the lines say.
    line: &'static str,
    /// Lines since the beginning of the interval, also those that are left out.
    count: AtomicU64,
}

pub static REFUSED: Limit = Limit::new("a message is refused, and dead-lettered");
pub static NOT_TAKEN: Limit = Limit::new("the broker did not take a message");
pub static NOT_READABLE: Limit = Limit::new("the broker does not allow a key to be read");
pub static NOT_ACCEPTED: Limit = Limit::new("cannot accept a client");
pub static REPLACED: Limit = Limit::new("the publishing connection is replaced");
pub static OVERDUE: Limit =
    Limit::new("messages wait for clients for too long, and are acknowledged");
static PANICKED: Limit = Limit::new("a fault of the gateway: a task has panicked");
const LIMITS: [&Limit; 7] =
    [&REFUSED, &NOT_TAKEN, &NOT_READABLE, &NOT_ACCEPTED, &REPLACED, &OVERDUE, &PANICKED];

impl Limit {
    const fn new(line: &'static str) -> Self {
        Self { line, count: AtomicU64::new(0) }
    }

    /// Returns `true` if the line is to be written.
    pub fn allows(&self) -> bool {
        self.count.fetch_add(1, Relaxed) < LINES
    }

    /// Ends the interval. Returns how many lines were left out.
    fn renew(&self) -> u64 {
        self.count.swap(0, Relaxed).saturating_sub(LINES)
    }
}

/// Ends an interval of all limits, and writes what was left out.
pub fn renew_limits() {
    for limit in LIMITS {
        let count = limit.renew();
        if count > 0 {
            warn!(line = limit.line, count, "lines were left out");
        }
    }
}

/// Ends the intervals of the limits when they are over.
pub async fn keep_limits() {
    let mut tick = interval_at(Instant::now() + INTERVAL, INTERVAL);
    loop {
        tick.tick().await;
        renew_limits();
    }
}

/// Starts the log, also for panics.
pub fn start(filter: Targets, as_json: bool) -> io::Result<()> {
    queue::start()?;
    let layer = lines::layer().with_target(false);
    let layer = if as_json {
        layer.json().with_writer(|| Ascii(Queue)).boxed()
    } else {
        layer.with_ansi(false).fmt_fields(Escaped).with_writer(|| Queue).boxed()
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Ends the log: the last line says why the program has failed.
pub fn end(error: Option<&str>) {
    renew_limits();
    if let Some(error) = error {
        // It is written in one piece, or not at all.
        let _ = Queue.write_all(format!("gateway: {error}\n").as_bytes());
    }
    queue::finish();
}

/// Logs a panic like any other event: what it says may come from outside, too.
fn log_panic(info: &PanicHookInfo<'_>) {
    let at = info.location().map(ToString::to_string).unwrap_or_default();
    let why = panic_text(info.payload());
    if !PANICKED.allows() {
        return;
    }
    error!(at, why, "a fault of the gateway: a task has panicked");
}

/// Returns what a panic says.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or_default()
}

/// Writes the fields of an event: the message, and `name=value` for each other field.
struct Escaped;

impl<'a> FormatFields<'a> for Escaped {
    fn format_fields<R: RecordFields>(&self, to: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = EscapedFields { to, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct EscapedFields<'a> {
    to: Writer<'a>,
    is_first: bool,
    result: fmt::Result,
}

impl EscapedFields<'_> {
    fn write(&mut self, field: &Field, text: &str) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.to.write_char(' ')?;
        }
        if field.name() == "message" {
            return escape(text, &mut self.to);
        }
        write!(self.to, "{}=", field.name())?;
        if is_plain(text) { self.to.write_str(text) } else { write!(self.to, "{text:?}") }
    }
}

impl Visit for EscapedFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.result = self.result.and_then(|()| self.write(field, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Returns `true` if the value of a field needs no quotes.
fn is_plain(text: &str) -> bool {
    let needs_quotes = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'"' | b'\\' | b'=');
    !text.is_empty() && !text.bytes().any(needs_quotes)
}

/// Writes a text without quotes, in which only what cannot be printed is escaped.
fn escape(text: &str, to: &mut impl fmt::Write) -> fmt::Result {
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => to.write_char(character)?,
            _ => write!(to, "{}", character.escape_debug())?,
        }
    }
    Ok(())
}

/// Writes JSON as ASCII. JSON has escaped the ASCII control characters, but others remain: line ends
/// of Unicode, at which some programs split lines, and control characters of terminals.
struct Ascii<W>(W);

impl<W: Write> Write for Ascii<W> {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        let is_printable = |byte: &u8| matches!(byte, b'\n' | b' '..=b'~');
        if json.iter().all(is_printable) {
            self.0.write_all(json)?;
            return Ok(json.len());
        }
        let mut escaped = String::with_capacity(2 * json.len());
        for character in String::from_utf8_lossy(json).chars() {
            if matches!(character, '\n' | ' '..='~') {
                escaped.push(character);
            } else {
                // JSON has no other characters outside of strings.
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(escaped, "\\u{unit:04x}").map_err(io::Error::other)?;
                }
            }
        }
        self.0.write_all(escaped.as_bytes())?;
        Ok(json.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing::{info, subscriber::with_default};

    use super::*;
    use crate::lock::Lock;

    #[derive(Clone, Default)]
    struct Lines(Arc<Lock<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    /// Foreign texts, and what is logged of them.
    const TEXTS: [(&str, &str); 8] = [
        ("tea", "tea"),
        ("a.b/c:1-2_(3)", "a.b/c:1-2_(3)"),
        ("", r#""""#),
        ("a b", r#""a b""#),
        ("a\nb=\"c\"", r#""a\nb=\"c\"""#),
        ("x why=forged", r#""x why=forged""#),
        ("\r\x1b[2J\x7f\u{9b}é", r#""\r\u{1b}[2J\u{7f}\u{9b}é""#),
        ("\u{2028}\u{202e}\u{feff}", r#""\u{2028}\u{202e}\u{feff}""#),
    ];

    #[test]
    fn a_foreign_text_neither_ends_a_line_nor_begins_a_field() {
        for (text, logged) in TEXTS {
            let lines = Lines::default();
            let to = lines.clone();
            let layer = lines::layer().with_ansi(false).without_time().with_target(false);
            let layer = layer.fmt_fields(Escaped).with_writer(move || to.clone());
            with_default(tracing_subscriber::registry().with(layer), || {
                let error = io::Error::other(text);
                info!(key = %text, text, %error, count = 7, "it is the gateway's");
            });
            let expected = format!(
                " INFO it is the gateway's key={logged} text={logged} error={logged} count=7\n"
            );
            assert_eq!(lines.text(), expected);
        }
    }

    #[test]
    fn ten_lines_of_a_kind_are_written_and_the_rest_is_counted() {
        let limit = Limit::new("it");
        assert_eq!((0..1_000).filter(|_| limit.allows()).count(), 10);
        assert_eq!(limit.renew(), 990);
        assert!(limit.allows(), "another interval has begun");
        assert_eq!(limit.renew(), 0);
    }

    #[test]
    fn a_message_that_contains_foreign_text_stays_on_its_line() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = lines::layer().with_ansi(false).without_time().with_target(false);
        let layer = layer.fmt_fields(Escaped).with_writer(move || to.clone());
        with_default(tracing_subscriber::registry().with(layer), || {
            info!("of {}", "a\n\x1b \"b\" \\n\u{2028}");
        });
        assert_eq!(lines.text(), " INFO of a\\n\\u{1b} \"b\" \\n\\u{2028}\n");
    }

    #[test]
    fn in_json_a_foreign_text_is_ascii_and_means_the_same() {
        for (text, _) in TEXTS.into_iter().chain([("\u{1f600}é", "")]) {
            let lines = Lines::default();
            let to = lines.clone();
            let layer = lines::layer().json().with_writer(move || Ascii(to.clone()));
            with_default(tracing_subscriber::registry().with(layer), || {
                info!(key = %text, "it");
            });
            let line = lines.text();
            let (json, rest) = line.split_once('\n').unwrap();
            assert!(rest.is_empty() && json.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(value["fields"]["key"], text);
        }
    }
}
