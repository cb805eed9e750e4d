//! The methods of the service, for clients and servers.

#![warn(unused, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
#![allow(clippy::missing_errors_doc)]

use std::collections::BTreeMap;
use std::sync::Arc;

use thrift::protocol::{TInputProtocol, TOutputProtocol, TSerializable};
use tokio_util::bytes::Bytes;

use super::{
    DemoAddArgs, DemoAddResult, DemoCountArgs, DemoCountResult, DemoEachArgs, DemoEachResult,
    DemoEchoArgs, DemoEchoResult, DemoLaterArgs, DemoLaterResult, DemoNoteArgs, DemoNotesArgs,
    DemoNotesResult, DemoPingArgs, DemoPingResult, DemoSumArgs, DemoSumResult, Forbidden,
    OneOfEach,
};
use crate::client::Client;
use crate::error::Error;
use crate::message::Wire;
use crate::service::{Request, Service};

macro_rules! wire {
    ($($name:ty),* $(,)?) => { $(
        impl Wire for $name {
            fn read(from: &mut dyn TInputProtocol) -> thrift::Result<Self> {
                <$name>::read_from_in_protocol(from)
            }
            fn write(&self, to: &mut dyn TOutputProtocol) -> thrift::Result<()> {
                self.write_to_out_protocol(to)
            }
        }
    )* };
}

wire!(DemoPingArgs, DemoPingResult, DemoAddArgs, DemoAddResult, DemoEchoArgs, DemoEchoResult);
wire!(DemoLaterArgs, DemoLaterResult, DemoEachArgs, DemoEachResult, DemoSumArgs, DemoSumResult);
wire!(DemoCountArgs, DemoCountResult, DemoNoteArgs, DemoNotesArgs, DemoNotesResult, OneOfEach);

impl Client {
    /// Returns nothing.
    pub async fn ping(&self) -> Result<(), Error> {
        self.call_as("ping", &DemoPingArgs {}, DemoPingResult::ok_or).await
    }
    /// Returns the sum of two numbers.
    pub async fn add(&self, left: i64, right: i64) -> Result<i64, Error> {
        let args = DemoAddArgs { left, right };
        self.call_as("add", &args, DemoAddResult::ok_or).await
    }
    /// Returns `text`.
    pub async fn echo(&self, text: impl Into<String>) -> Result<String, Error> {
        let args = DemoEchoArgs { text: text.into() };
        self.call_as("echo", &args, DemoEchoResult::ok_or).await
    }
    /// Returns `text` after `millis` milliseconds, at most a minute.
    pub async fn later(&self, text: impl Into<String>, millis: i32) -> Result<String, Error> {
        let args = DemoLaterArgs { text: text.into(), millis };
        self.call_as("later", &args, DemoLaterResult::ok_or).await
    }
    /// Returns `value`.
    pub async fn each(&self, value: OneOfEach) -> Result<OneOfEach, Error> {
        let args = DemoEachArgs { value };
        self.call_as("each", &args, DemoEachResult::ok_or).await
    }
    /// Returns the sum of `values`.
    pub async fn sum(&self, values: Vec<i64>) -> Result<i64, Error> {
        let args = DemoSumArgs { values };
        self.call_as("sum", &args, DemoSumResult::ok_or).await
    }
    /// Returns how often each word occurs, or [`Forbidden`] if a word is empty.
    pub async fn count(&self, words: Vec<String>) -> Result<BTreeMap<String, i32>, Error> {
        let args = DemoCountArgs { words };
        self.call_as("count", &args, DemoCountResult::ok_or).await
    }
    /// Counts a note. This is a one-way call.
    pub async fn note(&self, text: impl Into<String>) -> Result<(), Error> {
        self.send("note", &DemoNoteArgs { text: text.into() }).await
    }
    /// Returns the number of notes so far.
    pub async fn notes(&self) -> Result<i64, Error> {
        self.call_as("notes", &DemoNotesArgs {}, DemoNotesResult::ok_or).await
    }
}

/// The service of the IDL, to be implemented by a server. The methods are those of [`Client`].
#[allow(missing_docs, reason = "documented in the IDL")]
pub trait Demo: Send + Sync + 'static {
    fn ping(&self) -> impl Future<Output = Result<(), Error>> + Send;
    fn add(&self, left: i64, right: i64) -> impl Future<Output = Result<i64, Error>> + Send;
    fn echo(&self, text: String) -> impl Future<Output = Result<String, Error>> + Send;
    fn later(
        &self,
        text: String,
        millis: i32,
    ) -> impl Future<Output = Result<String, Error>> + Send;
    fn each(&self, value: OneOfEach) -> impl Future<Output = Result<OneOfEach, Error>> + Send;
    fn sum(&self, values: Vec<i64>) -> impl Future<Output = Result<i64, Error>> + Send;
    /// Returns [`Error::Declared`] with a [`Forbidden`] for a forbidden word.
    fn count(
        &self,
        words: Vec<String>,
    ) -> impl Future<Output = Result<BTreeMap<String, i32>, Error>> + Send;
    fn note(&self, text: String) -> impl Future<Output = ()> + Send;
    fn notes(&self) -> impl Future<Output = Result<i64, Error>> + Send;
}

/// Serves a [`Demo`].
#[derive(Debug)]
pub struct Serve<D>(pub Arc<D>);

impl<D: Demo> Service for Serve<D> {
    async fn call(&self, mut request: Request) -> Result<Option<Bytes>, Error> {
        let demo = &*self.0;
        if !request.is_for("Demo") {
            return request.unknown();
        }
        match request.message.name.as_str() {
            "ping" => {
                let DemoPingArgs {} = request.args()?;
                demo.ping().await?;
                request.answer(&DemoPingResult {})
            }
            "add" => {
                let DemoAddArgs { left, right } = request.args()?;
                let result_value = Some(demo.add(left, right).await?);
                request.answer(&DemoAddResult { result_value })
            }
            "echo" => {
                let DemoEchoArgs { text } = request.args()?;
                let result_value = Some(demo.echo(text).await?);
                request.answer(&DemoEchoResult { result_value })
            }
            "later" => {
                let DemoLaterArgs { text, millis } = request.args()?;
                let result_value = Some(demo.later(text, millis).await?);
                request.answer(&DemoLaterResult { result_value })
            }
            "each" => {
                let DemoEachArgs { value } = request.args()?;
                let result_value = Some(demo.each(value).await?);
                request.answer(&DemoEachResult { result_value })
            }
            "sum" => {
                let DemoSumArgs { values } = request.args()?;
                let result_value = Some(demo.sum(values).await?);
                request.answer(&DemoSumResult { result_value })
            }
            "count" => {
                let DemoCountArgs { words } = request.args()?;
                let (result_value, forbidden) = match demo.count(words).await {
                    Ok(counts) => (Some(counts), None),
                    Err(error) => match error.declared::<Forbidden>() {
                        Some(forbidden) => (None, Some(forbidden.clone())),
                        None => return Err(error),
                    },
                };
                request.answer(&DemoCountResult { result_value, forbidden })
            }
            "note" => {
                let DemoNoteArgs { text } = request.args()?;
                demo.note(text).await;
                Ok(None)
            }
            "notes" => {
                let DemoNotesArgs {} = request.args()?;
                let result_value = Some(demo.notes().await?);
                request.answer(&DemoNotesResult { result_value })
            }
            _ => request.unknown(),
        }
    }
}
