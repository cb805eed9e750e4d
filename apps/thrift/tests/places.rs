//! Callers of `round_robin` that have a place at a server and do something else, while the server
//! gets one call at a time because it has failed.

mod common;

use std::cell::Cell;
use std::future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{LONG, answers, millis, reply, request, scripted, within};
use futures::future::join_all;
use futures::poll;
use thrift_demux::{Client, Error, Pool};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

/// A pool of one server, which has lost its first call and gets one at a time.
async fn on_trial() -> Arc<Pool> {
    let (address, _) = scripted(async |mut socket: TcpStream, number| {
        if number == 0 {
            request(&mut socket).await;
        } else {
            answers(socket, number).await;
        }
    })
    .await;
    let pool = Pool::new([address], within(2 * LONG));
    assert!(matches!(echo(&pool).await, Err(Error::Closed(_))));
    Arc::new(pool)
}

async fn echo(pool: &Pool) -> Result<String, Error> {
    pool.round_robin(async |client| client.echo("x").await).await
}

/// Has so many closures take a place and wait for ever.
async fn hold(pool: &Arc<Pool>, count: usize) {
    let (has_place, mut places) = mpsc::unbounded_channel();
    for _ in 0..count {
        let (pool, has_place) = (Arc::clone(pool), has_place.clone());
        tokio::spawn(async move {
            pool.round_robin(async |_client: Client| {
                has_place.send(()).unwrap();
                future::pending::<Result<(), Error>>().await
            })
            .await
        });
    }
    for _ in 0..count {
        timeout(LONG, places.recv()).await.expect("it gets no place").unwrap();
    }
}

/// Waits for a call, which the server would answer at once.
async fn answered(call: impl Future<Output = Result<String, Error>>) {
    let answer = timeout(LONG, call).await.expect("the server gets no calls");
    assert_eq!(answer.unwrap(), "an answer");
}

#[tokio::test]
async fn a_caller_that_waits_for_something_else_leaves_a_server_on_trial_to_others() {
    let pool = on_trial().await;
    hold(&pool, 3).await;
    for _ in 0..3 {
        answered(echo(&pool)).await;
    }
}

#[tokio::test]
async fn a_caller_whose_call_has_failed_and_that_goes_on_leaves_the_server_to_others() {
    let (address, connections) = scripted(async |mut socket: TcpStream, number| {
        request(&mut socket).await;
        if number > 0 {
            answers(socket, number).await;
        }
    })
    .await;
    let pool = Arc::new(Pool::new([address], within(millis(500))));
    assert!(matches!(echo(&pool).await, Err(Error::Closed(_))));
    let (failed, has_failed) = oneshot::channel();
    let holder = {
        let (pool, failed) = (Arc::clone(&pool), Mutex::new(Some(failed)));
        tokio::spawn(async move {
            pool.round_robin(async |client: Client| {
                let error = client.echo("x").await.unwrap_err();
                failed.lock().unwrap().take().unwrap().send(error).unwrap();
                future::pending::<Result<(), Error>>().await
            })
            .await
        })
    };
    let error = timeout(LONG, has_failed).await.expect("it gets no place").unwrap();
    assert!(matches!(error, Error::Deadline(_)), "{error}");
    answered(echo(&pool)).await;
    assert_eq!(connections.load(SeqCst), 2, "both calls were on one connection");
    holder.abort();
}

#[tokio::test]
async fn calls_within_calls_reach_a_server_on_trial() {
    let pool = on_trial().await;
    let nested = async || {
        pool.round_robin(async |client: Client| {
            echo(&pool).await?;
            client.echo("x").await
        })
        .await
    };
    timeout(LONG, join_all((0..10).map(|_| answered(nested())))).await.expect("they wait for ever");
}

/// As `Buffered` does while its consumer is busy.
#[tokio::test]
async fn a_caller_that_is_not_polled_leaves_a_server_on_trial_to_others() {
    // The first gets its place, and the second the answer to its call.
    for calls_first in [false, true] {
        let pool = on_trial().await;
        let has_called = Cell::new(false);
        let mut unpolled = pin!(pool.round_robin(async |client| {
            has_called.set(true);
            client.echo("x").await
        }));
        loop {
            assert!(poll!(&mut unpolled).is_pending());
            if !calls_first || has_called.get() {
                break;
            }
            yield_now().await;
        }
        // Callers that have given up take no time.
        for _ in 0..1000 {
            assert!(poll!(pin!(echo(&pool))).is_pending());
        }
        timeout(LONG / 6, answered(echo(&pool))).await.expect("it waits for those that are gone");
        assert_eq!(has_called.get(), calls_first);
        answered(unpolled).await;
    }
}

/// As `Buffered` does while its consumer is busy, with more calls than there are places.
#[tokio::test]
async fn callers_that_are_not_polled_leave_the_places_to_others() {
    const PLACES: usize = 4;
    // They get their places, or some get the answers to their calls.
    for (calls_first, count) in [(false, PLACES), (true, PLACES), (false, 5000), (true, 50)] {
        let (address, _) = scripted(answers).await;
        let pool = Pool::new([address], within(LONG)).places(PLACES);
        answered(echo(&pool)).await;
        let called = Cell::new(0);
        let call = async |client: Client| {
            called.set(called.get() + 1);
            client.echo("x").await
        };
        let mut unpolled = (0..count).map(|_| Box::pin(pool.round_robin(call))).collect::<Vec<_>>();
        loop {
            for call in &mut unpolled {
                assert!(poll!(call).is_pending());
            }
            if !calls_first || called.get() == PLACES {
                break;
            }
            yield_now().await;
        }
        for _ in 0..100 {
            timeout(LONG / 6, answered(echo(&pool))).await.expect("it waits for them");
        }
        assert_eq!(called.get(), if calls_first { PLACES } else { 0 });
        for call in unpolled {
            answered(call).await;
        }
    }
}

/// Polls so many calls of the method that the server does not answer, until it has their requests.
async fn unanswered<'a>(
    pool: &'a Pool,
    count: usize,
    sent: &AtomicUsize,
) -> Vec<Pin<Box<dyn Future<Output = Result<String, Error>> + 'a>>> {
    let mut calls = Vec::new();
    for _ in 0..count {
        calls.push(Box::pin(pool.round_robin(async |client| client.later("x", 0).await)) as _);
    }
    while sent.load(SeqCst) < count {
        for call in &mut calls {
            let call: &mut Pin<Box<dyn Future<Output = _>>> = call;
            assert!(poll!(call).is_pending());
        }
        yield_now().await;
    }
    calls
}

/// Answers all requests but those for `later`, which are counted.
async fn answers_but_later(mut socket: TcpStream, later: Arc<AtomicUsize>) {
    while let Some(call) = request(&mut socket).await {
        if call.name == "later" {
            later.fetch_add(1, SeqCst);
        } else {
            socket.write_all(&reply(&call, call.id)).await.unwrap();
        }
    }
}

/// They are not answered, and do not see that their deadlines have passed.
#[tokio::test]
async fn calls_that_are_not_polled_after_their_deadline_leave_the_places_to_others() {
    const PLACES: usize = 4;
    let later = Arc::new(AtomicUsize::new(0));
    let sent = Arc::clone(&later);
    let (address, connections) =
        scripted(move |socket, _| answers_but_later(socket, Arc::clone(&later))).await;
    let pool = Pool::new([address], within(millis(2000))).places(PLACES);
    let unpolled = unanswered(&pool, PLACES, &sent).await;
    let others = async { while echo(&pool).await.is_err() {} };
    // The connection is not replaced, because these are answered.
    let keep = async {
        loop {
            let _ = pool.fail_over(async |client| client.echo("x").await).await;
            sleep(millis(10)).await;
        }
    };
    tokio::select! {
        () = others => {}
        never = keep => never,
        () = sleep(LONG / 2) => panic!("the places stay taken"),
    }
    assert_eq!(connections.load(SeqCst), 1);
    for call in unpolled {
        assert!(matches!(call.await, Err(Error::Deadline(_))));
    }
}

#[tokio::test]
async fn calls_that_are_not_polled_when_their_connection_ends_leave_the_places_to_others() {
    const PLACES: usize = 4;
    let later = Arc::new(AtomicUsize::new(0));
    let sent = Arc::clone(&later);
    let end = Arc::new(Notify::new());
    let ending = Arc::clone(&end);
    let (address, _) = scripted(move |socket, _| {
        let (later, ending) = (Arc::clone(&later), Arc::clone(&ending));
        async move {
            tokio::select! {
                () = answers_but_later(socket, later) => {}
                () = ending.notified() => {}
            }
        }
    })
    .await;
    // The deadline is longer than the watchdog.
    let pool = Pool::new([address], within(2 * LONG)).places(PLACES);
    answered(echo(&pool)).await;
    let unpolled = unanswered(&pool, PLACES, &sent).await;
    end.notify_one();
    // A call that begins before the end is known fails with the connection.
    let others = async { while echo(&pool).await.is_err() {} };
    timeout(LONG / 4, others).await.expect("the places stay taken");
    for call in unpolled {
        assert!(matches!(call.await, Err(Error::Closed(_))));
    }
}

/// Otherwise a server that answers nothing would get all calls that wait.
#[tokio::test]
async fn callers_that_call_at_once_reach_a_server_on_trial_one_at_a_time() {
    let (requests, deadline) = (Arc::new(AtomicUsize::new(0)), millis(400));
    let counter = Arc::clone(&requests);
    let (address, _) = scripted(move |mut socket: TcpStream, number| {
        let counter = Arc::clone(&counter);
        async move {
            while request(&mut socket).await.is_some() && number > 0 {
                counter.fetch_add(1, SeqCst);
            }
        }
    })
    .await;
    let pool = Pool::new([address], within(deadline));
    assert!(echo(&pool).await.is_err());
    let failed = join_all((0..20).map(|_| echo(&pool))).await;
    assert!(failed.iter().all(Result::is_err));
    let requests = requests.load(SeqCst);
    assert!(requests <= 3, "{requests} requests within a deadline");
}

/// Of some servers, one answers nothing. Makes calls for some deadlines. Returns how many requests it
/// got.
async fn sent_to_a_bad_server<F>(call: impl Fn(Arc<Pool>) -> F) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let (bad, _) = scripted(move |mut socket: TcpStream, _| {
        let counter = Arc::clone(&counter);
        async move {
            while request(&mut socket).await.is_some() {
                counter.fetch_add(1, SeqCst);
            }
        }
    })
    .await;
    let (good, other) = (scripted(answers).await.0, scripted(answers).await.0);
    let pool = Arc::new(Pool::new([bad, good, other], within(millis(500))));
    let (begin, mut calls) = (Instant::now(), JoinSet::new());
    let mut before = None;
    while begin.elapsed() < millis(4000) {
        if before.is_none() && begin.elapsed() > millis(1500) {
            before = Some(requests.load(SeqCst));
        }
        calls.spawn(call(Arc::clone(&pool)));
        sleep(millis(5)).await;
    }
    calls.join_all().await;
    requests.load(SeqCst) - before.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_server_gets_few_callers_that_prepare_something_first() {
    let sent = sent_to_a_bad_server(async |pool| {
        let prepared = async |client: Client| {
            sleep(millis(100)).await;
            client.echo("x").await
        };
        let _ = pool.round_robin(prepared).await;
    });
    let sent = sent.await;
    assert!(sent < 30, "{sent} requests in five deadlines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_server_gets_few_callers_that_keep_the_handle_and_call_later() {
    let sent = sent_to_a_bad_server(async |pool| {
        let client = pool.round_robin(async |client| Ok(client)).await.unwrap();
        let _ = client.echo("x").await;
    });
    let sent = sent.await;
    assert!(sent < 30, "{sent} requests in five deadlines");
}

#[tokio::test]
async fn a_caller_that_waits_for_ever_keeps_no_server_unused() {
    let calls = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut addresses = Vec::new();
    for counter in &calls {
        let counter = Arc::clone(counter);
        let script = move |mut socket: TcpStream, number| {
            let counter = Arc::clone(&counter);
            async move {
                if number == 0 {
                    request(&mut socket).await;
                    return;
                }
                while let Some(call) = request(&mut socket).await {
                    counter.fetch_add(1, SeqCst);
                    socket.write_all(&reply(&call, call.id)).await.unwrap();
                }
            }
        };
        addresses.push(scripted(script).await.0);
    }
    let pool = Arc::new(Pool::new(addresses, within(millis(500))));
    let failed = join_all([echo(&pool), echo(&pool)]).await;
    assert!(failed.iter().all(Result::is_err), "both servers have lost a call");
    hold(&pool, 2).await;
    let both_used = async {
        while calls.iter().any(|calls| calls.load(SeqCst) < 10) {
            answered(echo(&pool)).await;
        }
    };
    timeout(LONG, both_used).await.expect("a server is not used");
}
