//! Likely mistakes, and the error messages of rustc with the texts of this crate
//! (`diagnostic::on_unimplemented`, `must_use`). `docs/public-api.txt` has all bounds.

use compile_test::Snippets;

static SNIPPETS: Snippets = Snippets::new(
    "
#![allow(unused)]
use futures::{channel::mpsc, executor::block_on, sink, stream, Sink, SinkExt, Stream, StreamExt};
use stream_demux::*;
use std::{pin::Pin, rc::Rc};
",
    &["stream_demux", "futures", "tokio"],
    "
    let _ = tokio::sync::mpsc::channel::<u8>(1);
    block_on(stream::iter([1]).demux_by(|n| *n, stream::iter([(1, sink::drain())])));
",
);

#[track_caller]
fn mistake(snippet: &str, good: &str, bad: &str, code: &str, words: &[&str]) {
    SNIPPETS.mistake(snippet, good, bad, code, words);
}

#[test]
fn orders_that_yield_results() {
    mistake(
        "let (send, orders) = mpsc::unbounded::<@@>();
        let _ = stream::iter([1_u32]).demux_by(|n| *n, orders);",
        "(u32, sink::Drain<u32>)",
        "Result<(u32, sink::Drain<u32>), std::io::Error>",
        "E0277",
        &[
            "` is not an order",
            "must yield `(key, sink)`, `Attach<K, S>` or `Order<K, S>`",
            "filter",
        ],
    );
}

#[test]
fn orders_that_yield_plain_sinks() {
    mistake(
        "let orders = stream::iter([@@]);
        let _ = stream::iter([1_u32]).demux_by(|n| *n, orders);",
        "(1_u32, sink::drain())",
        "sink::drain::<u32>()",
        "E0277",
        &["` is not an order", "must yield `(key, sink)`"],
    );
}

#[test]
fn orders_that_are_a_tokio_receiver() {
    mistake(
        "let (_, orders) = tokio::sync::mpsc::channel::<(u32, sink::Drain<u32>)>(1);
        let _ = stream::iter([1_u32]).demux_by(|n| *n, @@);",
        "{ drop(orders); stream::empty::<(u32, sink::Drain<u32>)>() }",
        "orders",
        "E0277",
        &["is not a stream of orders", "ReceiverStream"],
    );
}

#[test]
fn orders_that_are_a_vec() {
    mistake(
        "let orders = vec![(1_u32, sink::drain::<u32>())];
        let _ = stream::iter([1_u32]).demux_by(|n| *n, @@);",
        "stream::iter(orders)",
        "orders",
        "E0277",
        &["is not a stream of orders", "stream::iter(orders)"],
    );
}

#[test]
fn boxed_sink_that_is_not_pinned() {
    mistake(
        "let orders = stream::empty::<(u32, @@)>();
        let _ = stream::iter([1_u32]).demux_by(|n| *n, orders);",
        "Pin<Box<dyn Sink<u32, Error = ()>>>",
        "Box<dyn Sink<u32, Error = ()>>",
        "E0277",
        &["Pin<Box<dyn Sink<u32, Error = E>>>"],
    );
}

#[test]
fn sink_that_is_not_unpin() {
    mistake(
        "let sink = sink::unfold((), |(), _: u32| async { Ok::<_, ()>(()) });
        let _ = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, @@)]));",
        "Box::pin(sink)",
        "sink",
        "E0277",
        &["Unpin", "Box::pin(sink)"],
    );
}

#[test]
fn tokio_sender() {
    mistake(
        "let (sender, _) = tokio::sync::mpsc::channel::<u32>(1);
        let _ = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, @@)]));",
        "{ drop(sender); sink::drain() }",
        "sender",
        "E0277",
        &["cannot be attached to a stream of `u32`", "PollSender"],
    );
}

#[test]
fn hooks_for_another_key() {
    mistake(
        "struct Mine;
        impl<V, E> Hooks<@@, V, E> for Mine {}
        let demux = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, sink::drain())]));
        let _ = demux.hooks(Mine);",
        "u32",
        "String",
        "E0277",
        &["does not implement `Hooks`", "key `u32`", "item `u32`", "sink error `Infallible`"],
    );
}

#[test]
fn type_that_implements_no_hooks() {
    mistake(
        "struct Mine;
        let demux = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, sink::drain())]));
        let _ = demux.hooks(@@);",
        "()",
        "Mine",
        "E0277",
        &["`Mine` does not implement `Hooks` for this demux", "closures are given to `on_error`"],
    );
}

#[test]
fn closure_given_to_hooks() {
    mistake(
        "let demux = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, sink::drain())]));
        let _ = demux.@@(|_: u32| ());",
        "on_unmatched",
        "hooks",
        "E0277",
        &["does not implement `Hooks`", "`on_unmatched`"],
    );
}

#[test]
fn sink_of_other_items() {
    mistake(
        "let (sink, _) = mpsc::unbounded::<@@>();
        let _ = stream::iter([1_u32]).demux_by(|n| *n, stream::iter([(1, sink)]));",
        "u32",
        "String",
        "E0277",
        &["cannot be attached to a stream of `u32`", "must implement `Sink<u32>`"],
    );
}

#[test]
fn multicast_of_items_that_are_not_clone() {
    mistake(
        "@@ struct Item(u32);
        let demux = stream::iter([Item(1)]).demux_by(|n| n.0, stream::iter([(1, sink::drain())]));
        let _ = demux.multicast();",
        "#[derive(Clone)]",
        "",
        "E0277",
        &["Item: Clone", "multicast"],
    );
}

#[test]
fn key_of_a_recipient_does_not_outlive_the_call() {
    mistake(
        "let mut kept: Option<@@> = None;
        let orders = stream::iter([(String::new(), sink::drain())]);
        let _ = stream::iter([String::new()]).demux_by_ref(|s| s.as_str(), orders)
            .admit(|to, _| { kept = Some(to.key.into()); true });",
        "String",
        "&String",
        "E0521",
        &["escapes the closure body"],
    );
}

#[test]
fn values_that_must_be_used_cause_a_warning() {
    let unused = |statement: &str| {
        SNIPPETS
            .check(&format!("#[deny(unused_must_use)] fn f(lease: &mut Lease) {{ {statement} }}"))
    };
    for (statement, words) in [
        ("stream::iter([1]).demux_by(|n| *n, stream::iter([(1, sink::drain())]));", "Demux"),
        (
            "stream::iter([1]).demux_by(|n| *n, stream::iter([(1, sink::drain())])).budget(1);",
            "Demux",
        ),
        ("Attach::new(1, ());", "Attach"),
        ("Attach::new(1, ()).buffer(1);", "Attach"),
        ("Attach::new(1, ()).leased(lease);", "Attach"),
        ("Lease::new();", "Lease"),
    ] {
        let message = unused(statement).expect_err(statement);
        assert!(message.contains(words) && message.contains("must be used"), "{message}");
        assert_eq!(unused(&format!("let _kept = {statement}")), Ok(()));
    }
}
