//! Connections that are reset, silent or confused, and what their calls get.

mod common;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{
    LONG, answers, millis, nothing_left, options, reads_only, reply, request, scripted, within,
};
use futures::future::join_all;
use std::sync::atomic::Ordering::SeqCst;
use thrift_demux::{Client, Error, Options, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// The server answers and resets the connection, and the client writes before it reads.
#[test]
fn answers_that_arrived_before_a_reset_are_returned() {
    const ROUNDS: usize = 20;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (done, is_reset) = mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            socket.set_nonblocking(true).unwrap();
            runtime.block_on(async {
                let mut socket = TcpStream::from_std(socket).unwrap();
                for _ in 0..2 {
                    let call = request(&mut socket).await.unwrap();
                    socket.write_all(&reply(&call, call.id)).await.unwrap();
                }
                socket.set_zero_linger().unwrap();
            });
            done.send(()).unwrap();
        }
    });
    let mut errors = Vec::new();
    for _ in 0..ROUNDS {
        runtime.block_on(async {
            let client = Client::connect(address, Options::default()).await.unwrap();
            let calls = ["one", "two"].map(|text| {
                let client = client.clone();
                tokio::spawn(async move { client.echo(text).await })
            });
            for _ in 0..8 {
                tokio::task::yield_now().await; // the requests are written
            }
            // Meanwhile, this thread does not run the connection.
            is_reset.recv_timeout(LONG).expect("the server did not get both calls");
            let write = client.note("fails");
            let (calls, _) = timeout(LONG, futures::future::join(join_all(calls), write))
                .await
                .expect("a call did not complete");
            errors.extend(calls.into_iter().filter_map(|call| call.unwrap().err()));
            let error = client.echo("after the end").await.unwrap_err();
            assert!(matches!(error, Error::Closed(_)), "{error}");
        });
    }
    assert!(errors.is_empty(), "of {} calls failed {}: {}", 2 * ROUNDS, errors.len(), errors[0]);
}

/// The calls are dropped by their caller, long before the deadline.
#[tokio::test]
async fn a_connection_is_silent_although_its_calls_are_dropped_early() {
    let (address, _) = scripted(reads_only).await;
    let client = Client::connect(address, within(millis(200))).await.unwrap();
    let silent = async {
        while client.closed().is_none() {
            let _ = timeout(millis(20), client.echo("x")).await;
        }
    };
    timeout(LONG, silent).await.expect("the connection stays open");
    let reason = client.closed().unwrap();
    assert_eq!(&*reason, "no call was answered in time for 3 deadlines of 200ms");
}

#[tokio::test]
async fn a_connection_without_calls_is_not_silent() {
    let (address, connections) = scripted(answers).await;
    let client = Client::connect(address, within(millis(100))).await.unwrap();
    sleep(millis(1000)).await;
    assert_eq!(client.closed(), None);
    drop(client);
    assert_eq!(connections.load(SeqCst), 1);
}

/// Bytes arrive all the time, and no answer within its deadline.
#[tokio::test]
async fn slow_bytes_do_not_keep_a_connection() {
    let (address, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            // The answer takes six deadlines, and a byte of it arrives at least twice per deadline.
            let answer = reply(&call, call.id);
            let pause = millis(6 * 200 / 24);
            for part in answer.chunks(answer.len().div_ceil(24)) {
                sleep(pause).await;
                if socket.write_all(part).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let client = Client::connect(address, within(millis(200))).await.unwrap();
    let closed = async {
        loop {
            match client.echo("x").await.unwrap_err() {
                Error::Deadline(_) => {}
                error => return error,
            }
        }
    };
    let error = timeout(LONG, closed).await.expect("the connection stays open");
    let expected = "no connection: no call was answered in time for 3 deadlines of 200ms";
    assert_eq!(error.to_string(), expected);
    nothing_left(&client).await;
}

/// The calls are dropped by their caller before the server answers, which it does in time.
#[tokio::test]
async fn answers_in_time_keep_a_connection_although_their_calls_were_dropped() {
    let (address, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            sleep(millis(20)).await;
            if socket.write_all(&reply(&call, call.id)).await.is_err() {
                return;
            }
        }
    })
    .await;
    let deadline = millis(500);
    let client = Client::connect(address, within(deadline)).await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 5 * deadline {
        let _ = timeout(millis(10), client.echo("x")).await;
        sleep(millis(20)).await;
    }
    assert_eq!(client.closed(), None);
    nothing_left(&client).await;
}

#[tokio::test]
async fn an_answer_with_an_id_that_no_call_has_is_an_error_of_all_calls() {
    for protocol in [Protocol::Binary, Protocol::Compact] {
        for wrong in [0, -1, 100, i32::MIN, i32::MAX] {
            let (address, _) = scripted(move |mut socket: TcpStream, _| async move {
                while let Some(call) = request(&mut socket).await {
                    let id = if call.id < 50 { call.id } else { wrong };
                    let _ = socket.write_all(&reply(&call, id)).await;
                }
            })
            .await;
            // The default deadline: each call would wait for half a minute.
            let client = Client::connect(address, options(protocol)).await.unwrap();
            for _ in 1..50 {
                client.echo("x").await.unwrap();
            }
            let calls = join_all((0..10).map(|_| client.echo("x")));
            for answer in timeout(Duration::from_secs(20), calls).await.expect("calls wait") {
                let error = answer.unwrap_err();
                assert!(matches!(error, Error::Closed(_)), "{error}");
                let expected = format!("the server answered echo with the id {wrong}");
                assert!(error.to_string().contains(&expected), "{error}");
            }
            nothing_left(&client).await;
        }
    }
}

/// The handles are dropped while requests are waiting to be written.
#[tokio::test]
async fn a_connection_without_handles_ends_although_the_server_does_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::connect(address, within(millis(300))).await.unwrap();
    let (_unread, _) = listener.accept().await.unwrap();
    let text = "x".repeat(1 << 20);
    let full = async { while client.note(text.clone()).await.is_ok() {} };
    timeout(LONG, full).await.expect("the queue never fills");
    assert_eq!(client.closed(), None);
    drop(client);
    let runtime = tokio::runtime::Handle::current();
    let ended = async {
        while runtime.metrics().num_alive_tasks() > 0 {
            sleep(millis(10)).await;
        }
    };
    timeout(LONG, ended).await.expect("the task of the connection goes on");
}

/// A server that accepts connections and reads nothing.
async fn reads_nothing(socket: TcpStream, _: usize) {
    std::future::pending::<()>().await;
    drop(socket);
}

/// One-way calls have no answers whose absence could be noticed.
#[tokio::test]
async fn one_way_calls_notice_a_server_that_does_not_read() {
    for size in [20_000, 2_000_000] {
        let (address, _) = scripted(reads_nothing).await;
        let client = Client::connect(address, within(millis(300))).await.unwrap();
        let text = "x".repeat(size);
        let noticed = async {
            loop {
                match client.note(text.clone()).await {
                    Ok(()) | Err(Error::Deadline(_)) => {}
                    Err(error) => return error,
                }
            }
        };
        let noticed = timeout(LONG, noticed).await.expect("the connection stays open");
        let expected = "no connection: no byte could be written for 3 deadlines of 300ms";
        assert_eq!(noticed.to_string(), expected);
    }
}

#[tokio::test]
async fn one_way_calls_that_are_read_slowly_keep_a_connection() {
    let (address, _) = scripted(async |mut socket: TcpStream, _| {
        let mut bytes = vec![0; 200_000];
        while socket.read_exact(&mut bytes).await.is_ok() {
            sleep(millis(20)).await;
        }
    })
    .await;
    let client = Client::connect(address, within(millis(400))).await.unwrap();
    // It takes several deadlines until one request is written.
    let text = "x".repeat(16_000_000);
    for _ in 0..2 {
        let _ = client.note(text.clone()).await;
    }
    sleep(millis(2000)).await;
    assert_eq!(client.closed(), None);
}

/// A server in a process of its own, whose standard error is a pipe that is not read.
#[cfg(unix)]
#[tokio::test]
async fn a_server_whose_messages_are_not_read_answers_and_ends() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let mut command = Command::new(env!("CARGO_BIN_EXE_thrift-demux"));
    command.args(["serve", "--tee", "--listen", "127.0.0.1:0"]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").expect("no address").to_owned();
    let calls = async {
        let client = Client::connect(&address, Options::default()).await.unwrap();
        for number in 0..3_000 {
            let mut bad = TcpStream::connect(&address).await.unwrap();
            bad.write_all(&[0xff; 4]).await.unwrap();
            let _ = bad.read(&mut [0]).await;
            assert_eq!(client.add(number, 1).await.unwrap(), number + 1);
        }
    };
    let done = timeout(LONG, calls).await;
    let pid = server.id().to_string();
    let stopped = done.is_ok() && Command::new("kill").args(["-INT", &pid]).status().is_ok();
    let begin = Instant::now();
    let ended = loop {
        match server.try_wait().unwrap() {
            None if stopped && begin.elapsed() < LONG => sleep(Duration::from_millis(10)).await,
            ended => break ended,
        }
    };
    let _ = server.kill();
    let _ = server.wait();
    done.expect("the server does not answer");
    assert!(ended.expect("it does not end").success());
}
