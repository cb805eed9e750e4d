//! Plays a script: polls the demux, and passes the tape to the monitor.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::super::{Op, SinkHandle, StreamHandle, Task, lock};
use super::event::{Command, Cue, Event, Request, Step, Tape};
use super::monitor::{Monitor, View};
use super::script::{OPS, Script, Settings};
use super::setup::{Subject, setup};
use super::world::World;
use super::{GIVEN_UP, MAX_IDLE, MAX_POLLS, MAX_STEPS};

/// One run of a script.
pub(super) struct Run<'a> {
    script: Script<'a>,
    bytes: &'a [u8],
    settings: Settings,
    world: Arc<Mutex<World>>,
    tape: Tape,
    read: usize,
    task: Option<Task<Subject>>,
    pub(super) monitor: Monitor,
    idle: usize,
    completed: bool,
}

impl<'a> Run<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut script = Script(bytes.iter());
        let settings = script.settings();
        let tape = Tape::default();
        let (demux, world) = setup(settings, &tape);
        Self {
            script,
            bytes,
            settings,
            world,
            tape,
            read: 0,
            task: Some(Task::new(demux)),
            monitor: Monitor::new(settings),
            idle: 0,
            completed: false,
        }
    }

    /// Plays the script to its end. Returns the fault, if there is one.
    pub(super) fn guarded(&mut self) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.play())) {
            Ok(Err(complaint)) if complaint == GIVEN_UP => {
                self.monitor.summary.count("given up");
                None
            }
            Ok(played) => played.err(),
            Err(payload) => Some(match payload.downcast::<String>() {
                Ok(message) => *message,
                Err(payload) => match payload.downcast::<&str>() {
                    Ok(message) => (*message).to_owned(),
                    Err(_) => "a panic without a message".to_owned(),
                },
            }),
        }
    }

    pub(super) fn story(&self, complaint: Option<&str>) -> String {
        let mut story = format!("script {:?}\n{:?}\n", self.bytes, self.settings);
        for event in lock(&self.tape.0).iter() {
            let margin = match event {
                Event::Ask(..) | Event::AskOrders | Event::OrdersWoken | Event::Sent(_) => continue,
                Event::Step(_) => "",
                event if event.is_outside() => "  ",
                _ => "    ",
            };
            let _ = writeln!(story, "{margin}{event:?}");
        }
        if let Some(complaint) = complaint {
            let _ = writeln!(story, "WRONG: {complaint}");
        }
        story
    }

    fn play(&mut self) -> Result<(), String> {
        for _ in 0..MAX_STEPS {
            let Some(step) = self.script.step() else { break };
            self.tape.push(Event::Step(step));
            match step {
                Step::Do(cmd) => lock(&self.world).exec(cmd),
                Step::Inside(place, cmd) => lock(&self.world).plan(place, cmd),
                Step::RenewWaker => self.task.as_mut().into_iter().for_each(Task::renew_waker),
                Step::Poll => drop(self.turn(false)?),
                Step::PollUnasked => drop(self.turn(true)?),
                Step::Run => self.until_asleep()?,
            }
        }
        if !self.settings.drops {
            self.finish()?;
        }
        Self::read_tape(&self.tape, &mut self.read, &mut self.monitor)?;
        self.end()
    }

    fn until_asleep(&mut self) -> Result<(), String> {
        for _ in 0..MAX_POLLS {
            if !self.turn(false)? {
                return Ok(());
            }
        }
        Err(format!("still awake after {MAX_POLLS} polls"))
    }

    /// Polls once, if the task was woken or `unasked` is set. Returns `true` if it polled the
    /// future, which had not completed.
    fn turn(&mut self, unasked: bool) -> Result<bool, String> {
        let Some(task) = self.task.as_mut().filter(|_| !self.completed) else { return Ok(false) };
        if !unasked && !task.woken() {
            lock(&self.world).fire_deferred(true);
        }
        let polls = task.polls();
        self.tape.push(Event::Turn);
        let before = lock(&self.tape.0).len();
        let answer = if unasked { task.poll() } else { task.turns(1) };
        if task.polls() == polls {
            lock(&self.tape.0).pop();
            return Ok(false);
        }
        let asleep = answer.is_pending() && !task.woken();
        let quiet = lock(&self.tape.0).len() == before;
        self.idle = if quiet && !asleep && !unasked { self.idle + 1 } else { 0 };
        // To advance a sink that has nothing to do, or a slot that is vacant by now, costs one,
        // too. A tick comes to each sink, and the share of ticks in a turn may be an eighth.
        let sinks = self.monitor.facts.sinks.len();
        let max_idle = MAX_IDLE + (4 + 8 * self.monitor.facts.ticks) * sinks / self.settings.budget;
        if self.idle > max_idle {
            return Err(format!("the task was woken {max_idle} times with nothing to do"));
        }
        let seen = task.get_ref().look();
        let totals = seen.totals;
        let world = lock(&self.world);
        let view = View {
            seen,
            asleep,
            completed: answer.is_ready(),
            live: Arc::strong_count(&world.live) - 1,
            input: world.input.as_ref(),
            orders: &world.orders,
            sinks: &world.sinks,
        };
        if let Poll::Ready(output) = answer {
            if output != totals {
                return Err(format!("completed with {output:?}, but totals() is {totals:?}"));
            }
            self.tape.push(Event::Completed);
        } else {
            self.tape.push(Event::Rest { asleep, totals });
        }
        Self::read_tape(&self.tape, &mut self.read, &mut self.monitor)?;
        self.monitor.rest(&view)?;
        drop(world);
        lock(&self.world).fire_deferred(false);
        if answer.is_ready() {
            self.completed = true;
            self.check_dropped(false)?;
        }
        Ok(true)
    }

    fn read_tape(tape: &Tape, read: &mut usize, monitor: &mut Monitor) -> Result<(), String> {
        let tape = lock(&tape.0);
        for event in &tape[*read..] {
            *read += 1;
            monitor.observe(event)?;
        }
        Ok(())
    }

    /// Opens all sinks, removes all limits, and polls until the future completes.
    fn finish(&mut self) -> Result<(), String> {
        {
            let mut world = lock(&self.world);
            world.over = true;
            world.in_hook = None;
            for sink in 0..world.sinks.len() {
                for op in OPS {
                    world.sinks[sink].during(op, || {});
                    if op != Op::Send {
                        world.sinks[sink].stutter(op, 0);
                        world.cue(sink, Cue::Release(op));
                    }
                }
            }
            world.lift_budgets();
            world.exec(Command::EndInput);
        }
        self.until_asleep()?;
        if self.completed {
            Ok(())
        } else {
            Err("all sinks are open, but the future does not complete".into())
        }
    }

    /// Checks what is dropped after completion or, with `future`, after the future was dropped.
    fn check_dropped(&self, future: bool) -> Result<(), String> {
        let world = lock(&self.world);
        let input = world.input.as_ref();
        for (id, sink) in world.sinks.iter().enumerate() {
            if self.monitor.facts.sinks[id].applied && !sink.is_dropped() {
                return Err(format!("sink {id} was not dropped"));
            }
        }
        if !world.orders.is_dropped() {
            return Err("the orders stream was not dropped".into());
        }
        if future != input.is_none_or(StreamHandle::is_dropped) {
            return Err("the input must be dropped with the future, not before".into());
        }
        let left = input.map_or(0, StreamHandle::left);
        let taken: usize = world.sinks.iter().map(SinkHandle::taken).sum();
        let live = Arc::strong_count(&world.live) - 1;
        if live != left + taken {
            return Err(format!("{live} items exist, but {left} are unread and {taken} taken"));
        }
        Ok(())
    }

    /// Drops the future, then uses everything that outlives it.
    fn end(&mut self) -> Result<(), String> {
        let Some(mut task) = self.task.take() else { return Ok(()) };
        task.drop_future();
        {
            let mut world = lock(&self.world);
            world.over = true;
            world.lift_budgets();
        }
        self.check_dropped(true)?;
        let wakes = task.total_wakes() + task.stale_wakes();
        let mut world = lock(&self.world);
        // The input was polled with the task's own waker, and its handle keeps it.
        world.input = None;
        if task.wakers_kept() > 0 {
            return Err(format!("{} wakers of the task still exist", task.wakers_kept()));
        }
        for sink in &world.sinks {
            sink.wake();
        }
        world.orders.wake();
        for lease in 0..4 {
            world.exec(Command::Lease(lease, Some(Request::Evict)));
        }
        if task.total_wakes() + task.stale_wakes() > wakes {
            return Err("a waker that outlives the future wakes the task".into());
        }
        Ok(())
    }
}
