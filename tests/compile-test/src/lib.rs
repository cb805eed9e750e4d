//! Compiles snippets with rustc and compares the messages. Each snippet is compiled twice: correctly,
//! which must succeed, and with one mistake, which must fail.
//!
//! The snippets are checked against the libraries in the folder of the test binary. Built with
//! `--target` or with a sanitizer, these libraries need other flags: skip such a test.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

/// What the snippets of a test have in common.
#[derive(Debug)]
pub struct Snippets {
    /// The beginning of every snippet.
    prelude: &'static str,
    /// The names of the libraries that they use.
    names: &'static [&'static str],
    /// A snippet that compiles if the libraries match each other and the compiler.
    control: &'static str,
    libraries: OnceLock<Result<Libraries, String>>,
}

impl Snippets {
    pub const fn new(
        prelude: &'static str,
        names: &'static [&'static str],
        control: &'static str,
    ) -> Self {
        Self { prelude, names, control, libraries: OnceLock::new() }
    }

    /// Asserts that a snippet compiles with `good` and fails with `bad`, with this error code and all
    /// of these words in the message. `@@` is the place of the mistake.
    #[track_caller]
    pub fn mistake(&self, snippet: &str, good: &str, bad: &str, code: &str, words: &[&str]) {
        let message = self.message(snippet, good, bad);
        let error = format!("error[{code}]");
        assert!(message.contains(&error), "expected the error {code}:\n{message}");
        for words in words {
            assert!(message.contains(words), "`{words}` is not in\n{message}");
        }
    }

    /// Asserts that a snippet compiles with `good`, and returns the message with `bad`.
    #[track_caller]
    pub fn message(&self, snippet: &str, good: &str, bad: &str) -> String {
        assert_eq!(snippet.matches("@@").count(), 1, "there must be one place for the mistake");
        if let Err(message) = self.check(&snippet.replace("@@", good)) {
            panic!("the correct snippet does not compile:\n{message}");
        }
        match self.check(&snippet.replace("@@", bad)) {
            Ok(()) => panic!("`{bad}` should not compile"),
            Err(message) => message,
        }
    }

    /// Type-checks the body of a function.
    pub fn check(&self, body: &str) -> Result<(), String> {
        let find = || Libraries::find(self.prelude, self.names, self.control);
        match self.libraries.get_or_init(find) {
            Ok(libraries) => libraries.check(self.prelude, body),
            Err(reason) => panic!("{reason}"),
        }
    }
}

/// The libraries that snippets use.
#[derive(Debug)]
struct Libraries {
    folder: PathBuf,
    /// Name and file.
    externs: Vec<(&'static str, PathBuf)>,
}

impl Libraries {
    /// Searches the folder of the test binary. There may be several libraries of each name, from
    /// other features and compilers; uses the newest ones that work with this compiler.
    fn find(prelude: &str, names: &[&'static str], control: &str) -> Result<Self, String> {
        let binary = env::current_exe().map_err(|error| error.to_string())?;
        let folder = binary.parent().ok_or("the test binary has no folder")?;
        let mut combinations = vec![Vec::new()];
        for &name in names {
            let found = candidates(folder, name);
            let mut longer = Vec::new();
            for combination in &combinations {
                for file in &found {
                    let mut combination = combination.clone();
                    combination.push((name, file.clone()));
                    longer.push(combination);
                }
            }
            combinations = longer;
        }
        let mut message = String::from("a library is missing");
        for externs in combinations {
            let libraries = Self { folder: folder.to_owned(), externs };
            match libraries.check(prelude, control) {
                Ok(()) => return Ok(libraries),
                Err(error) => message = error,
            }
        }
        let folder = folder.display();
        Err(format!("no libraries in {folder} work with this rustc. The last attempt:\n{message}"))
    }

    fn check(&self, prelude: &str, body: &str) -> Result<(), String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let folder = env::temp_dir().join(format!("stream-demux-{}-{n}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let source = folder.join("snippet.rs");
        fs::write(&source, format!("{prelude}\nfn snippet() {{\n{body}\n}}\n"))
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
