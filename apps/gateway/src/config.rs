//! The command line.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use axum::http::Uri;
use clap::builder::ArgPredicate;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, ValueEnum};
use lapin::uri::AMQPUri;
use stream_demux::Overflow;
use tracing_subscriber::filter::Targets;

/// A message gateway: from RabbitMQ, or what is posted to it, to WebSockets by key.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
pub struct Config {
    /// Where to listen; port 0 picks one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Publishes this many made-up messages a second on eight keys: demo.tea, demo.coffee, …
    #[arg(long, value_name = "RATE", value_parser = demo)]
    pub demo: Option<NonZeroU32>,

    /// What happens when the buffer of a subscription is full
    #[arg(long, value_name = "POLICY", default_value = "drop-oldest")]
    pub overflow: Policy,

    /// Messages that may wait for a client, for each subscription
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub buffer: u32,

    /// Messages a second for each subscription, what exceeds it is dropped; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub rate: u32,

    /// Bytes of messages that may wait for all clients; one may have an eighth of what is left of
    /// it
    #[arg(long, value_name = "BYTES", default_value_t = 256 * 1024 * 1024)]
    pub max_queued: usize,

    /// Messages of each key that are kept for clients that reconnect; all together use up to a
    /// quarter of --max-queued
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub history: u32,

    /// Send buffer of each client's socket in the kernel; 0: the system's default; with --demo,
    /// 8192
    #[arg(long, value_name = "BYTES", default_value_t = 128 * 1024,
        default_value_if("demo", ArgPredicate::IsPresent, Some("8192")))]
    pub send_buffer: u32,

    /// The largest message that may be published
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024)]
    pub max_body: usize,

    /// The largest batch of messages that may be published
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    pub max_batch: usize,

    /// Maximum number of open WebSockets, and of connections for other requests
    // With other connections and files, the default needs 16,320 descriptors: less than the common
    // hard limits of 16,384 and 20,000. The soft limit is raised to it.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Keys that one WebSocket may subscribe to
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_subscriptions: usize,

    /// Token that publishers must send: Authorization: Bearer TOKEN
    #[arg(long, env = "GATEWAY_TOKEN", hide_env_values = true, value_parser = token)]
    pub token: Option<String>,

    /// Key for tokens of readers (JWT, HS256), which list the allowed keys and expire
    #[arg(long, value_name = "KEY", env = "GATEWAY_READ_KEY", hide_env_values = true, value_parser = read_key)]
    pub read_key: Option<String>,

    /// Another origin whose pages may connect, such as https://example.org; * for any; repeatable
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub allow_origin: Vec<String>,

    /// Ping interval. A client that leaves three pings in a row unanswered is disconnected
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = some_seconds)]
    pub ping: Duration,

    /// How long the gateway waits at shutdown for clients to take their queued messages
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub drain: Duration,

    /// What is logged to standard error: debug, or warn,gateway=info, …
    #[arg(long, value_name = "FILTER", default_value = "warn,gateway=info,lapin=off")]
    pub log: Targets,

    /// Logs one JSON object per line
    #[arg(long)]
    pub log_json: bool,

    /// RabbitMQ: `amqp://user:password@host:5672/vhost`
    #[arg(long, value_name = "URI", env = "GATEWAY_AMQP", hide_env_values = true, value_parser = amqp)]
    pub amqp: Option<AMQPUri>,

    #[command(flatten, next_help_heading = "With --amqp")]
    pub broker: BrokerConfig,
}

#[derive(Debug, Clone, clap::Args)]
pub struct BrokerConfig {
    /// Name of this gateway; its queue is gateway.NAME. Each gateway needs its own
    #[arg(long, value_name = "NAME", default_value = "main", value_parser = name)]
    pub node: String,

    /// Exchange to publish to; declared durable, and direct unless one of the next two options is
    /// given
    #[arg(long, value_name = "NAME", default_value = "gateway", value_parser = name)]
    pub exchange: String,

    /// Use a topic exchange
    #[arg(long)]
    pub topic: bool,

    /// Take the key from this header instead of the routing key; the exchange is a headers exchange
    #[arg(long, value_name = "NAME", value_parser = header, conflicts_with = "topic")]
    pub key_header: Option<String>,

    /// Use a quorum queue, which may have a delivery limit; the queue must not exist as a classic
    /// one
    #[arg(long)]
    pub quorum: bool,

    /// Bind the queue to this key permanently, instead of following the subscriptions; repeatable
    #[arg(long, value_name = "KEY", value_parser = name)]
    pub binding: Vec<String>,

    /// Messages that may be unacknowledged; one client may have a 64th of them waiting
    #[arg(long, value_name = "N", default_value = "8192")]
    pub prefetch: NonZeroU16,

    /// How long a message may be unacknowledged while it waits for a client; must be lower than the
    /// broker's `consumer_timeout`
    // The defaults of `consumer_timeout` are 30 minutes, and 15 in RabbitMQ 3.8.15 and 3.8.16; the broker
    // checks once a minute. A client that has waited for ten minutes does not miss a redelivery.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = some_seconds)]
    pub ack_timeout: Duration,

    /// How long the queue exists without its gateway
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = expiry)]
    pub expires: Duration,

    /// How long the gateway waits for clients to reconnect when it starts on an existing queue
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub grace: Duration,
}

impl BrokerConfig {
    pub fn queue(&self) -> String {
        format!("gateway.{}", self.node)
    }

    /// The queue that is the lock. No queue of a gateway has this name, whatever the `--node`.
    pub fn lock(&self) -> String {
        format!("gateway-lock.{}", self.node)
    }
}

/// Options whose values are secret.
const SECRETS: [&str; 3] = ["--amqp", "--token", "--read-key"];

impl Config {
    /// Reads the command line and the environment. Ends the program if something is wrong.
    pub fn read() -> Self {
        let config = Self::try_parse().and_then(Self::checked);
        config.unwrap_or_else(|error| hide_secrets(error).exit())
    }

    /// Refuses options that contradict each other.
    fn checked(self) -> Result<Self, clap::Error> {
        let BrokerConfig { topic, key_header, binding, grace, expires, .. } = &self.broker;
        if self.amqp.is_some() && grace >= expires {
            let message = format!(
                "--grace ({} s) must be less than --expires ({} s): the queue would expire before \
                 the gateway consumes from it",
                grace.as_secs_f64(),
                expires.as_secs_f64()
            );
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        if !topic && key_header.is_none() {
            let is_pattern = |key: &&String| key.split('.').any(|word| word == "*" || word == "#");
            if let Some(pattern) = binding.iter().find(is_pattern) {
                let message = format!(
                    "--binding '{pattern}' is a pattern, which needs --topic: a direct exchange \
                     would take it as a key"
                );
                return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
            }
        }
        Ok(self)
    }

    /// Returns `true` if messages are dropped for clients that do not read.
    pub fn drops(&self) -> bool {
        !matches!(self.overflow, Policy::Wait)
    }

    /// Returns how many messages may wait for one client. The limit leaves most of the prefetch to
    /// other clients, and bounds the broker's work: to find an acknowledged message, it searches
    /// all older unacknowledged ones (rabbitmq-server, issue 1511). There is no limit without a
    /// broker, where the queues are the bound, or with `wait`, which blocks the input by design.
    pub fn share(&self) -> usize {
        match self.overflow {
            Policy::Wait => usize::MAX,
            _ => self.share_of_latest(),
        }
    }

    /// Returns how many messages may wait for one client when a subscription to the latest value has
    /// another one, which has to be given up. Such a subscription never blocks the input.
    pub fn share_of_latest(&self) -> usize {
        match &self.amqp {
            None => usize::MAX,
            Some(_) => usize::from(self.broker.prefetch.get() / 64).max(1),
        }
    }

    /// Returns how many messages may wait for all clients when a subscription to the latest value
    /// has another one: half of what the broker delivers.
    pub fn half_of_prefetch(&self) -> usize {
        match &self.amqp {
            None => usize::MAX,
            Some(_) => usize::from(self.broker.prefetch.get() / 2),
        }
    }
}

/// [`Overflow`], with the names of the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Policy {
    /// The input waits, and with it all clients
    Wait,
    /// The new message is dropped
    DropNewest,
    /// The oldest waiting message is dropped
    DropOldest,
    /// The subscription is ended
    Evict,
}

impl From<Policy> for Overflow {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Wait => Self::Wait,
            Policy::DropNewest => Self::DropNewest,
            Policy::DropOldest => Self::DropOldest,
            Policy::Evict => Self::Evict,
        }
    }
}

fn demo(text: &str) -> Result<NonZeroU32, String> {
    let rate = text.parse().ok().filter(|rate: &NonZeroU32| rate.get() <= 100_000);
    rate.ok_or_else(|| "not a number between 1 and 100000".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let most = 86_400.0 * 365.0;
    if !(0.0..=most).contains(&seconds) {
        return Err("not between 0 and a year".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn some_seconds(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(100);
    seconds(text).and_then(|it| if it < least { Err("less than 0.1 s".to_owned()) } else { Ok(it) })
}

/// RabbitMQ takes it in milliseconds, as a signed 32-bit number.
fn expiry(text: &str) -> Result<Duration, String> {
    let most = Duration::from_millis(i32::MAX as u64);
    some_seconds(text)
        .and_then(|it| if it > most { Err("more than 24 days".into()) } else { Ok(it) })
}

/// A short string of AMQP (at most 255 bytes), with room for a prefix.
fn name(text: &str) -> Result<String, String> {
    match text.len() {
        // RabbitMQ removes line ends from names of queues.
        _ if text.contains(char::is_control) => Err("contains a control character".to_owned()),
        0 => Err("empty".to_owned()),
        1..=200 => Ok(text.to_owned()),
        _ => Err("longer than 200 bytes".to_owned()),
    }
}

fn header(text: &str) -> Result<String, String> {
    if text.starts_with("x-") {
        return Err("RabbitMQ does not compare headers that begin with x-".to_owned());
    }
    name(text)
}

/// Errors may end up in a log, and the values of these options must not.
fn hide_secrets(mut error: clap::Error) -> clap::Error {
    let is_secret = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => {
            SECRETS.contains(&option.split_whitespace().next().unwrap_or_default())
        }
        _ => false,
    };
    if is_secret {
        error.insert(ContextKind::InvalidValue, ContextValue::String("(hidden)".to_owned()));
    }
    error
}

fn token(text: &str) -> Result<String, String> {
    let is_header = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || !is_header {
        return Err("must be visible ASCII characters, without a space".to_owned());
    }
    Ok(text.to_owned())
}

/// At least as long as the output of SHA-256 (RFC 7518, 3.2).
fn read_key(text: &str) -> Result<String, String> {
    if text.len() < 32 { Err("shorter than 32 bytes".to_owned()) } else { Ok(text.to_owned()) }
}

fn origin(text: &str) -> Result<String, String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let uri: Uri = text.parse().map_err(|_| "not an origin".to_owned())?;
    match (uri.scheme_str(), uri.authority(), uri.path_and_query().map_or("", |path| path.as_str()))
    {
        // Browsers send the origin in lower case and without a trailing slash.
        (Some(scheme), Some(host), "" | "/") => Ok(format!("{scheme}://{host}").to_lowercase()),
        _ => Err("not an origin, which is a scheme and a host: https://example.org".to_owned()),
    }
}

fn amqp(text: &str) -> Result<AMQPUri, String> {
    let mut uri: AMQPUri = text.parse().map_err(|error| format!("not an AMQP URI: {error}"))?;
    if !matches!(uri.scheme, lapin::uri::AMQPScheme::AMQP) {
        return Err("this build has no TLS: amqp:// only".to_owned());
    }
    // In seconds. A lost connection is detected after two intervals.
    uri.query.heartbeat.get_or_insert(10);
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(arguments: &[&str]) -> Option<String> {
        let config = Config::try_parse_from(["gateway"].iter().chain(arguments));
        config.and_then(Config::checked).err().map(|error| error.to_string())
    }

    #[test]
    fn what_would_bind_other_keys_than_it_says_is_refused() {
        for (arguments, why) in [
            (&["--binding", "tea.#"][..], "--binding 'tea.#' is a pattern"),
            (&["--binding", "tea", "--binding", "*"], "--binding '*' is a pattern"),
            (&["--key-header", "x-device"], "begin with x-"),
            (&["--node", "a\nb"], "control character"),
        ] {
            let error = error_of(arguments).unwrap();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(error_of(&["--binding", "tea.#", "--topic"]), None);
        assert_eq!(error_of(&["--binding", "#", "--key-header", "device"]), None);
        assert_eq!(error_of(&["--binding", "a#b.tea*"]), None);
    }

    #[test]
    fn an_invalid_secret_is_not_printed() {
        for arguments in [
            ["--amqp", "amqps://user:sekret@host"],
            ["--amqp", "amqp://user:sekret@host:x/"],
            ["--token", "sekret\n"],
            ["--read-key", "sekret"],
        ] {
            let error = Config::try_parse_from(["gateway"].into_iter().chain(arguments));
            let text = hide_secrets(error.unwrap_err()).to_string();
            assert!(!text.contains("sekret") && text.contains(arguments[0]), "{text}");
        }
        let error = Config::try_parse_from(["gateway", "--rate", "much"]).unwrap_err();
        assert!(hide_secrets(error).to_string().contains("much"));
    }
}
