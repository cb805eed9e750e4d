//! Likely mistakes, and what the compiler says: the first line of its message has what to write
//! instead.

use compile_test::Snippets;

static SNIPPETS: Snippets = Snippets::new(
    "
#![allow(unused)]
use futures::{sink, stream, Sink, SinkExt, Stream, StreamExt};
use std::{hash::Hash, rc::Rc, sync::Arc, time::Duration};
use stream_demux_hub::*;
use tokio::sync::mpsc;
",
    &["stream_demux_hub", "futures", "tokio"],
    "
    let (sender, _) = mpsc::channel::<u32>(1);
    let hub = Hub::<u32, u32>::new();
    let _ = hub.attach(1, MpscSink::new(sender), Terms::new());
    // The traits of `futures` are those of the hub: there may be builds with others.
    let _ = hub.attach(1, sink::drain(), Terms::new());
    let _ = for_each_by_key(stream::iter([1]), |n| *n, Workers::new(), |_, _| async {});
    let _ = sink::drain::<u32>().send(1);
",
);

/// Asserts that a snippet compiles with `good` and fails with `bad`, that the first line of the
/// message contains `first`, and that all of it contains these words.
#[track_caller]
fn mistake(snippet: &str, good: &str, bad: &str, first: &str, words: &[&str]) {
    let message = SNIPPETS.message(snippet, good, bad);
    let first_line = message.lines().next().unwrap_or_default();
    assert!(first_line.contains(first), "`{first}` is not in the first line of\n{message}");
    for words in words {
        assert!(message.contains(words), "`{words}` is not in\n{message}");
    }
}

#[test]
fn workers_on_a_tokio_receiver() {
    mistake(
        "let (_, receiver) = mpsc::channel::<(u32, String)>(1);
        let _ = for_each_by_key(@@, |item| item.0, Workers::new(), |_, mut items| async move {
            while let Some((_, text)) = items.recv().await {
                println!(\"{text}\");
            }
        });",
        "{ drop(receiver); stream::empty::<(u32, String)>() }",
        "receiver",
        "Receiver<(u32, String)>` is not a stream: write \
        `ReceiverStream::new(receiver)` for the receiver of a tokio channel, `stream::iter(items)` \
        for a `Vec`",
        &["the input must be a `Stream`", "`tokio_stream::wrappers` has `ReceiverStream`"],
    );
}

#[test]
fn workers_on_a_vec() {
    mistake(
        "let items = vec![(1_u32, String::new())];
        let _ = for_each_by_key(@@, |item| item.0, Workers::new(), |_, _| async {});",
        "stream::iter(items)",
        "items",
        "`Vec<(u32, String)>` is not a stream: write \
        `ReceiverStream::new(receiver)` for the receiver of a tokio channel, `stream::iter(items)` \
        for a `Vec`",
        &[],
    );
}

#[test]
fn hub_with_a_tokio_receiver_as_its_input() {
    mistake(
        "let (_, receiver) = mpsc::channel::<(u32, String)>(1);
        let _ = Hub::builder().input(@@);",
        "{ drop(receiver); stream::empty::<(u32, String)>() }",
        "receiver",
        "Receiver<(u32, String)>` is not a stream: write \
        `ReceiverStream::new(receiver)` for the receiver of a tokio channel, `stream::iter(items)` \
        for a `Vec`",
        &[],
    );
}

#[test]
fn progress_of_a_tokio_receiver() {
    mistake(
        "let (_, receiver) = mpsc::channel::<(u32, u64)>(1);
        let _ = Progress::new().track(@@, |item| *item);",
        "{ drop(receiver); stream::empty::<(u32, u64)>() }",
        "receiver",
        "Receiver<(u32, u64)>` is not a stream: write \
        `ReceiverStream::new(receiver)` for the receiver of a tokio channel, `stream::iter(items)` \
        for a `Vec`",
        &[],
    );
}

#[test]
fn tokio_sender_that_is_attached() {
    mistake(
        "let (sender, _) = mpsc::channel::<String>(1);
        let hub = Hub::<u32, String>::new();
        let _ = hub.attach(1, @@, Terms::new());",
        "MpscSink::new(sender)",
        "sender",
        "Sender<String>` cannot be attached to a hub of `String`: \
        write `MpscSink::new(sender)` for the sender of a tokio channel, `write_sink(..)` for a \
        socket or file",
        &["this must implement `Sink<String, Error = E>`"],
    );
}

#[test]
fn sink_of_other_items_that_is_attached() {
    mistake(
        "let hub = Hub::<u32, String>::new();
        let _ = hub.attach(1, sink::drain::<@@>(), Terms::new());",
        "String",
        "u64",
        "Drain<u64>` cannot be attached to a hub of `String`: write \
        `MpscSink::new(sender)` for the sender of a tokio channel, `write_sink(..)` for a socket or \
        file",
        &["use `SinkExt::with` to convert them"],
    );
}

#[test]
fn sink_with_another_error_that_is_attached() {
    mistake(
        "let hub = Hub::<u32, String>::new();
        let sink = sink::drain().sink_map_err(|_| @@);
        let _ = hub.attach(1, sink, Terms::new());",
        "\"failed\"",
        "7",
        "cannot be attached to a hub of `String`",
        &["use `SinkExt::sink_map_err`"],
    );
}

#[test]
fn number_as_an_idle_timeout() {
    mistake(
        "let _ = Workers::<u32>::new().idle_timeout(@@);",
        "Duration::from_secs(10)",
        "10",
        "`{integer}` is not a time: write `Duration::from_secs(60)`, or `None` for no \
        time-out",
        &["this must be a `Duration` or an `Option<Duration>`"],
    );
}

const NO_CLONE: &str = "`Order` cannot be published: write `#[derive(Clone)]` for it, \
    or publish an `Arc<Order>`";

#[test]
fn hub_of_items_that_are_not_clone() {
    mistake(
        "@@ struct Order(String);
        let hub = Hub::<u32, Order>::new();",
        "#[derive(Clone)]",
        "",
        NO_CLONE,
        &[],
    );
}

#[test]
fn hub_of_items_that_are_not_clone_by_a_builder() {
    mistake(
        "@@ struct Order(String);
        let hub = Hub::<u32, Order>::builder().capacity(7).spawn();",
        "#[derive(Clone)]",
        "",
        NO_CLONE,
        &[],
    );
}

#[test]
fn item_that_is_not_clone_and_is_published() {
    mistake(
        "@@ struct Order(String);
        async {
            let hub = Hub::new();
            let _ = hub.publish(1, Order(String::new())).await;
        };",
        "#[derive(Clone)]",
        "",
        NO_CLONE,
        &[],
    );
}

#[test]
fn item_that_is_not_clone_and_is_subscribed_to() {
    mistake(
        "@@ struct Order(String);
        fn listen(hub: &Hub<u32, Order>) {
            let _ = hub.subscribe(1);
        }",
        "#[derive(Clone)]",
        "",
        NO_CLONE,
        &[],
    );
}

/// rustc has no way to add a hint to an error about lifetimes. The documentation of
/// `for_each_by_key` quotes these words and says what to write.
#[test]
fn key_of_a_worker_that_is_borrowed() {
    mistake(
        "let items = stream::iter([(String::new(), 1)]);
        let _ = for_each_by_key(items, |item| @@, Workers::new(), |_, _| async {});",
        "item.0.clone()",
        "item.0.as_str()",
        "error: lifetime may not live long enough",
        &["return type of closure is &"],
    );
}

/// The traits of these messages are implemented for everything that fits.
#[test]
fn what_fits_in_generic_code_compiles() {
    let body = "
        fn workers<St, T: Send + 'static>(input: St) -> ForEachByKey<u32, T>
        where
            St: Stream<Item = T> + Send + 'static,
        {
            let idle = Workers::new().idle_timeout(None).idle_timeout(Some(Duration::ZERO));
            for_each_by_key(input, |_| 1, idle, |_, _| async {})
        }
        fn idle<T: Into<Option<Duration>>>(workers: Workers<u32>, time: T) -> Workers<u32> {
            workers.idle_timeout(time)
        }
        fn attach<K, V, S, E>(hub: &Hub<K, V>, key: K, sink: S)
        where
            K: Hash + Eq + Clone + Send + 'static,
            V: Clone + Send + 'static,
            S: Sink<V, Error = E> + Send + 'static,
            E: Into<SinkError>,
        {
            let _ = hub.attach(key.clone(), sink, Terms::new());
            let _ = hub.subscribe(key);
        }
        fn spawn<K, V, St>(input: St) -> Hub<K, V>
        where
            K: Hash + Eq + Clone + Send + 'static,
            V: Clone + Send + 'static,
            St: Stream<Item = (K, V)> + Send + 'static,
        {
            Hub::builder().input(input).spawn()
        }
        fn boxed(input: futures::stream::BoxStream<'static, (String, u64)>) {
            for_each_by_key(input, |item| item.0.clone(), Workers::new(), |key, mut items| async move {
                while let Some((name, _)) = items.recv().await {
                    assert!(name.len() == key.len());
                }
            });
        }";
    assert_eq!(SNIPPETS.check(body), Ok(()));
}
