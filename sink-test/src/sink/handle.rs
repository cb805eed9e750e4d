//! The handle of a scripted sink: controls what the sink returns, and records the calls.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::Op;
use super::state::{Repeats, State};
use crate::{CoopBudget, Log, lock};

/// Controls and observes a sink; created by [`scripted_sink`](crate::scripted_sink).
///
/// It may outlive the sink, and then still holds its wakers. If several behaviours are set for an
/// operation, a [stutter](Self::stutter) comes first, then a [failure](Self::fail), then a
/// [hold](Self::hold).
///
/// # Examples
///
/// ```
/// use futures::SinkExt;
/// use sink_test::{Op, Task, scripted_sink};
///
/// let (mut sink, handle) = scripted_sink("a");
/// handle.hold(Op::Flush);
/// let mut task = Task::new(sink.send(1));
/// assert!(task.run().is_pending());
/// assert_eq!((handle.taken(), handle.flushed()), (1, 0));
///
/// handle.release(Op::Flush);
/// assert!(task.woken() && task.run().is_ready());
/// assert_eq!(handle.flushed(), 1);
/// ```
pub struct SinkHandle<V>(Arc<Mutex<State<V>>>);

impl<V> Clone for SinkHandle<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> fmt::Debug for SinkHandle<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look(|state| {
            f.debug_struct("SinkHandle")
                .field("name", &state.name)
                .field("taken", &state.taken)
                .field("flushed", &state.flushed)
                .field("calls", &state.calls)
                .finish_non_exhaustive()
        })
    }
}

/// Behaviour of the sink.
impl<V> SinkHandle<V> {
    pub(super) fn new(state: Arc<Mutex<State<V>>>) -> Self {
        Self(state)
    }

    /// Makes `poll_ready` return `Pending`, unless it has promised the next send already.
    pub fn park(&self) {
        self.look(|state| state.permits = Some(0));
    }

    /// Makes `poll_ready` return `Ready(Ok(()))`, and fires the waker that waits for it.
    pub fn open(&self) {
        self.look(|state| state.permits = None);
        self.wake_waiting(Op::Ready);
    }

    /// Allows `sends` more sends, after which the sink is parked again, and fires the waker that
    /// waits for one.
    ///
    /// # Examples
    ///
    /// A channel with room for two:
    ///
    /// ```
    /// use futures::SinkExt;
    /// use sink_test::{Task, scripted_sink};
    ///
    /// let (mut sink, handle) = scripted_sink("a");
    /// handle.park();
    /// handle.allow(2);
    /// let mut task = Task::new(async {
    ///     for n in 1.. {
    ///         sink.feed(n).await.unwrap();
    ///     }
    /// });
    /// assert!(task.run().is_pending());
    /// assert_eq!(handle.items(), [1, 2]);
    ///
    /// handle.allow(1);
    /// assert!(task.woken() && task.run().is_pending());
    /// assert_eq!(handle.items(), [1, 2, 3]);
    /// ```
    pub fn allow(&self, sends: usize) {
        self.look(|state| state.permits = Some(state.permits.unwrap_or(0) + sends));
        self.wake_waiting(Op::Ready);
    }

    /// Makes `op` return `Pending` until it is [released](Self::release); `hold(Op::Ready)` is
    /// [`park`](Self::park).
    ///
    /// # Panics
    ///
    /// Panics for [`Op::Send`], which cannot be pending.
    #[track_caller]
    pub fn hold(&self, op: Op) {
        match op {
            Op::Ready => self.park(),
            Op::Send => panic!("start_send cannot be held: it has no Pending"),
            Op::Flush | Op::Close => self.look(|state| state.script(op).held = true),
        }
    }

    /// Ends a hold, and fires the waker that waits for it; `release(Op::Ready)` is
    /// [`open`](Self::open).
    pub fn release(&self, op: Op) {
        self.look(|state| state.script(op).held = false);
        match op {
            Op::Ready => self.open(),
            Op::Send | Op::Flush | Op::Close => self.wake_waiting(op),
        }
    }

    /// Makes `op` return `Err(Broken(op.name()))`, and fires the waker that waits for it.
    pub fn fail(&self, op: Op) {
        self.fail_quietly(op);
        self.wake_waiting(op);
    }

    /// The same as [`fail`](Self::fail), but fires no waker: the next call of `op` fails.
    pub fn fail_quietly(&self, op: Op) {
        self.look(|state| state.script(op).fails = true);
    }

    /// Makes the next `calls` calls of `op` return `Pending` and fire their waker inside the call,
    /// as tokio's resources do when the cooperative budget of a task is spent.
    ///
    /// # Panics
    ///
    /// Panics for [`Op::Send`], which cannot be pending.
    #[track_caller]
    pub fn stutter(&self, op: Op, calls: usize) {
        assert_ne!(op, Op::Send, "start_send cannot stutter: it has no Pending");
        self.look(|state| state.script(op).stutters = calls);
    }

    /// Makes the sink return `Pending` while `budget` is spent.
    pub fn share(&self, budget: &CoopBudget) {
        let replaced = self.look(|state| state.budget.replace(budget.clone()));
        drop(replaced);
    }

    /// Runs `action` inside the next call of `op`, before the call is checked. It may use the
    /// handle.
    ///
    /// # Examples
    ///
    /// Room becomes free between the check and the registration of the waker, where a wake is
    /// easily lost:
    ///
    /// ```
    /// use futures::SinkExt;
    /// use sink_test::{Op, Task, scripted_sink};
    ///
    /// let (mut sink, handle) = scripted_sink("a");
    /// handle.park();
    /// let inside = handle.clone();
    /// handle.during(Op::Ready, move || inside.open());
    /// assert!(Task::new(sink.send(1)).run().is_ready());
    /// ```
    pub fn during(&self, op: Op, action: impl FnOnce() + Send + 'static) {
        let replaced = self.look(|state| state.script(op).action.replace(Box::new(action)));
        drop(replaced);
    }

    /// Fires the last waker that the sink was polled with. Returns `false` if there is none.
    pub fn wake(&self) -> bool {
        let waker = self.look(|state| {
            state.wakes += 1;
            state.last_waker.clone()
        });
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// The last waker that the sink was polled with. The sink does not notice if it is fired: see
    /// [`excuse`](Self::excuse).
    pub fn waker(&self) -> Option<Waker> {
        self.look(|state| state.last_waker.clone())
    }

    /// Makes it a breach to call a pending operation again before the sink has fired its waker. A
    /// flush may be called again if the sink has taken an item meanwhile.
    ///
    /// A future cannot keep this rule by itself, because it may be polled at any time. It is for
    /// futures that keep track of the wakes of each sink, such as those that poll many.
    ///
    /// # Examples
    ///
    /// ```should_panic
    /// use futures::{SinkExt, future::join};
    /// use sink_test::{Op, Task, scripted_sink};
    ///
    /// let ((mut a, handle_a), (mut b, handle_b)) = (scripted_sink("a"), scripted_sink("b"));
    /// handle_a.park();
    /// handle_b.park();
    /// handle_b.strict();
    /// // `join` polls both when either is woken.
    /// let mut task = Task::new(join(a.send(1), b.send(1)));
    /// assert!(task.run().is_pending());
    /// handle_a.open();
    /// // Panics: "sink b: poll_ready called again before its waker fired".
    /// let _ = task.run();
    /// ```
    pub fn strict(&self) {
        self.look(|state| state.repeats = Repeats::Never);
    }

    /// Like [`strict`](Self::strict), except that a caller may doubt that a sink that returned
    /// `Pending` is full: `poll_ready` may be called again, once for each `Pending` that was the
    /// first or followed a wake, at the start of a later poll of the [`Task`](crate::Task), before
    /// anything but such sinks is polled.
    ///
    /// In a task of tokio, a sink also returns `Pending` if the cooperative budget of the task is
    /// spent, and fires its waker only later. In the next poll the budget is whole.
    pub fn strict_unless_in_doubt(&self) {
        self.look(|state| state.repeats = Repeats::InDoubt);
    }

    /// Undoes [`strict`](Self::strict) and
    /// [`strict_unless_in_doubt`](Self::strict_unless_in_doubt).
    pub fn lenient(&self) {
        self.look(|state| state.repeats = Repeats::Always);
    }

    /// Allows one more call of a pending operation, as if the sink had fired its waker, for a
    /// strict sink whose [waker](Self::waker) the test has fired itself.
    pub fn excuse(&self) {
        self.look(|state| state.wakes += 1);
    }

    /// Makes the sink part of a check of adapters, which catches breaches without calling the panic
    /// hook, which prints. While `poll_close` is pending, `poll_ready` and `poll_flush` are
    /// allowed, because adapters in use call them, such as `Buffer` of futures 0.3.
    pub(crate) fn serve_check(&self) {
        self.look(|state| state.is_checked = true);
    }

    /// Logs events of the sink from now on, but not each call: `a sent 1`, `a flushed`, `a closed`,
    /// `a failed in poll_ready`, `a dropped`.
    pub fn log_to(&self, log: &Log) {
        self.look(|state| state.log = Some(log.clone()));
    }

    /// Fires the waker of the last `Pending` of `op`, once.
    fn wake_waiting(&self, op: Op) {
        let waiting = self.look(|state| {
            let waiting = state.script(op).waiting.take();
            // Counted before it fires, because another thread may call the sink at once.
            state.wakes += usize::from(waiting.is_some());
            waiting
        });
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    pub(super) fn look<R>(&self, at: impl FnOnce(&mut State<V>) -> R) -> R {
        let mut state = lock(&self.0);
        state.hear_deferred();
        at(&mut state)
    }
}
