//! Likely mistakes, and the error messages of rustc with the texts of this crate
//! (`diagnostic::on_unimplemented`, `must_use`). Each snippet is compiled twice: correctly, which
//! must succeed, and with one mistake, which must fail. `docs/public-api.txt` has all bounds.
//!
//! The snippets are checked with rustc, against the libraries in the folder of this test binary.
//! Built with `--target` or with a sanitizer, these libraries need other flags: skip this test.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

/// The beginning of every snippet.
const PRELUDE: &str = "
#![allow(unused)]
use futures::{channel::mpsc, executor::block_on, sink, stream, Sink, SinkExt, Stream, StreamExt};
use stream_demux::*;
use std::{pin::Pin, rc::Rc};
";

/// Asserts that a snippet compiles with `good` and fails with `bad`, with this error code and all
/// of these words in the message.
#[track_caller]
fn mistake(snippet: &str, good: &str, bad: &str, code: &str, words: &[&str]) {
    assert_eq!(snippet.matches("@@").count(), 1, "there must be one place for the mistake");
    if let Err(message) = check(&snippet.replace("@@", good)) {
        panic!("the correct snippet does not compile:\n{message}");
    }
    let Err(message) = check(&snippet.replace("@@", bad)) else {
        panic!("`{bad}` should not compile");
    };
    assert!(message.contains(&format!("error[{code}]")), "expected the error {code}:\n{message}");
    for words in words {
        assert!(message.contains(words), "`{words}` is not in\n{message}");
    }
}

/// Type-checks the body of a function.
fn check(body: &str) -> Result<(), String> {
    static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
    match LIBRARIES.get_or_init(Libraries::find) {
        Ok(libraries) => libraries.check(body),
        Err(reason) => panic!("{reason}"),
    }
}

/// The libraries that snippets use.
struct Libraries {
    folder: PathBuf,
    /// Name and file.
    externs: [(&'static str, PathBuf); 3],
}

impl Libraries {
    /// Searches the folder of the test binary. There may be several libraries of each name, from
    /// other features and compilers; uses the newest ones that work with this compiler.
    fn find() -> Result<Self, String> {
        let binary = env::current_exe().map_err(|error| error.to_string())?;
        let folder = binary.parent().ok_or("the test binary has no folder")?;
        let [ours, futures, tokio] =
            ["stream_demux", "futures", "tokio"].map(|name| candidates(folder, name));
        let mut message = String::from("a library is missing");
        for (ours, futures) in ours.iter().flat_map(|a| futures.iter().map(move |b| (a, b))) {
            for tokio in &tokio {
                let externs = [("stream_demux", ours), ("futures", futures), ("tokio", tokio)];
                let externs = externs.map(|(name, file)| (name, file.clone()));
                let libraries = Self { folder: folder.to_owned(), externs };
                match libraries.check(CONTROL) {
                    Ok(()) => return Ok(libraries),
                    Err(error) => message = error,
                }
            }
        }
        let folder = folder.display();
        Err(format!("no libraries in {folder} work with this rustc. The last attempt:\n{message}"))
    }

    fn check(&self, body: &str) -> Result<(), String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let folder = env::temp_dir().join(format!("stream-demux-{}-{n}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let source = folder.join("snippet.rs");
        fs::write(&source, format!("{PRELUDE}\nfn snippet() {{\n{body}\n}}\n"))
            .map_err(|error| error.to_string())?;

        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition=2021", "--crate-type=lib", "--emit=metadata", "--color=never"]);
        rustc.arg("--out-dir").arg(&folder).arg("-L").arg(joined("dependency=", &self.folder));
        for (name, file) in &self.externs {
            rustc.arg("--extern").arg(joined(&format!("{name}="), file));
        }
        let output = rustc.arg(&source).output();
        let _ = fs::remove_dir_all(&folder);
        let output = output.map_err(|error| format!("rustc cannot be run: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

/// Compiles if the libraries match each other and the compiler.
const CONTROL: &str = "
    let _ = tokio::sync::mpsc::channel::<u8>(1);
    block_on(stream::iter([1]).demux_by(|n| *n, stream::iter([(1, sink::drain())])));
";

/// Returns the libraries of this name, the newest first.
fn candidates(deps: &Path, name: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{name}-");
    let is_one = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.starts_with(&prefix) && path.extension().is_some_and(|kind| kind == "rlib")
    };
    let files = fs::read_dir(deps).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(is_one).collect();
    let age = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    files.sort_by_key(|path| std::cmp::Reverse(age(path).unwrap_or(SystemTime::UNIX_EPOCH)));
    files
}

fn joined(prefix: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(prefix);
    joined.push(path);
    joined
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
        check(&format!("#[deny(unused_must_use)] fn f(lease: &mut Lease) {{ {statement} }}"))
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
