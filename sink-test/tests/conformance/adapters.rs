//! Adapters of `futures`, and broken adapters.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::ready;
use futures::{Sink, SinkExt};
use sink_test::{Broken, Fault, Rule, ScriptedSink, SinkCheck, check_adapter};

type Answer = Poll<Result<(), Broken>>;

/// The fault of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    SendsWithoutReady,
    IgnoresPending,
    DoesNotFlush,
    DoesNotClose,
    FlushesAfterAnError,
    SwallowsErrors,
}

struct Adapter {
    wrong: Wrong,
    inside: ScriptedSink<usize>,
}

impl Sink<usize> for Adapter {
    type Error = Broken;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Answer {
        if self.wrong == Wrong::SendsWithoutReady {
            return Poll::Ready(Ok(()));
        }
        match self.inside.poll_ready_unpin(cx) {
            Poll::Pending if self.wrong == Wrong::IgnoresPending => Poll::Ready(Ok(())),
            answer => answer,
        }
    }

    fn start_send(mut self: Pin<&mut Self>, item: usize) -> Result<(), Broken> {
        self.inside.start_send_unpin(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Answer {
        if self.wrong == Wrong::DoesNotFlush {
            return Poll::Ready(Ok(()));
        }
        let answer = self.inside.poll_flush_unpin(cx);
        if !matches!(answer, Poll::Ready(Err(_))) {
            return answer;
        }
        match self.wrong {
            Wrong::FlushesAfterAnError => self.inside.poll_flush_unpin(cx),
            Wrong::SwallowsErrors => Poll::Ready(Ok(())),
            _ => answer,
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Answer {
        if self.wrong == Wrong::DoesNotClose {
            return self.poll_flush(cx);
        }
        self.inside.poll_close_unpin(cx)
    }
}

#[track_caller]
fn fault(wrong: Wrong) -> Fault {
    let check = SinkCheck::adapter(|inside| Adapter { wrong, inside });
    check.try_run().expect_err("the fault was not found")
}

#[track_caller]
fn assert_breaks(wrong: Wrong, rule: Rule) {
    let fault = fault(wrong);
    assert_eq!(fault.rule(), rule, "{fault}");
}

#[test]
fn adapter_without_a_fault_passes_without_gaps() {
    let report = check_adapter(|inside| Adapter { wrong: Wrong::Nothing, inside });
    assert!(report.gaps().is_empty());
}

#[test]
fn adapter_that_sends_without_ready_is_found() {
    assert_breaks(Wrong::SendsWithoutReady, Rule::InnerContract);
    assert_breaks(Wrong::IgnoresPending, Rule::InnerContract);
    let breach = "sink inside: start_send without a Ready(Ok) of poll_ready since the last send";
    assert_eq!(fault(Wrong::SendsWithoutReady).what(), breach);
}

#[test]
fn adapter_that_does_not_flush_or_close_is_found() {
    assert_breaks(Wrong::DoesNotFlush, Rule::Flushes);
    assert_breaks(Wrong::DoesNotClose, Rule::Closes);
}

#[test]
fn adapter_that_continues_after_an_error_is_found() {
    assert_breaks(Wrong::FlushesAfterAnError, Rule::InnerContract);
    assert_breaks(Wrong::SwallowsErrors, Rule::InnerContract);
}

#[test]
fn adapters_of_futures_pass() {
    for size in [0, 1, 3] {
        let check = SinkCheck::adapter(|inside| inside.buffer(size)).capacity(size + 2);
        assert!(check.run().gaps().is_empty());
    }
    check_adapter(|inside| inside.with(|n| ready(Ok::<_, Broken>(n))));
    check_adapter(|inside| inside.with_flat_map(|n| futures::stream::iter([Ok(n)])));
    check_adapter(|inside| inside.sink_map_err(|error| error.to_string()));
    check_adapter(SinkExt::sink_err_into::<Box<dyn std::error::Error>>);
}
