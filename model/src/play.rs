//! Plays a script in two worlds, that of the crate and that of the reference, and compares them.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use sink_test::{SinkHandle, StreamHandle, Task};

use crate::event::{Event, Seen, Step, Tape};
use crate::monitor::Monitor;
use crate::script::{Script, Settings};
use crate::subject::{Subject, setup};
use crate::world::World;
use crate::{ITEM_KEYS, MAX_POLLS, MAX_STEPS, lock};

/// The crate or the reference, in a world of its own.
struct Side {
    name: &'static str,
    world: Arc<Mutex<World>>,
    tape: Tape,
    task: Task<Subject>,
    completed: bool,
    /// How much of the tape was compared.
    read: usize,
}

impl Side {
    fn new(settings: Settings, is_reference: bool) -> Self {
        let (subject, world, tape) = setup(settings, is_reference.then(Arc::default));
        let name = if is_reference { "the reference" } else { "the crate" };
        Self { name, world, tape, task: Task::new(subject), completed: false, read: 0 }
    }

    /// Executes a step. Returns whether it has polled.
    fn step(&mut self, step: Step) -> Result<bool, String> {
        self.tape.push(Event::Step(step));
        match step {
            Step::Do(command) => lock(&self.world).exec(command),
            Step::Inside(place, command) => lock(&self.world).plan(place, command),
            Step::RenewWaker => self.task.renew_waker(),
            Step::Elapse(nanos) => {
                self.task.get_pin_mut().as_deref_mut().elapse(Duration::from_nanos(nanos));
            }
            Step::Poll | Step::Run => return self.turn(false),
            Step::PollUnasked => return self.turn(true),
        }
        Ok(false)
    }

    /// Polls once, if the task was woken or `unasked` is set. Returns whether it has polled.
    fn turn(&mut self, unasked: bool) -> Result<bool, String> {
        if self.completed {
            return Ok(false);
        }
        if !unasked && !self.task.woken() {
            lock(&self.world).fire_deferred(true);
        }
        let (polls, place) = (self.task.polls(), self.tape.len());
        self.tape.push(Event::Turn);
        let answer = if unasked { self.task.poll() } else { self.task.turns(1) };
        if self.task.polls() == polls {
            lock(&self.tape.0).truncate(place);
            return Ok(false);
        }
        self.completed = answer.is_ready();
        let world = lock(&self.world);
        let asleep = answer.is_pending() && !self.task.woken();
        // Looking at a crowd takes longer than the turn: once in sixteen turns is enough.
        let looks = asleep || world.sinks.len() < 50 || polls % 16 == 0;
        let keys = world.terms.iter().map(|terms| terms.key + 1).fold(ITEM_KEYS, u16::max);
        let mut seen = self.task.get_ref().look(if looks { keys } else { 0 });
        seen.recipients.sort_unstable();
        seen.leaving.sort_unstable();
        let live = Arc::strong_count(&world.live) - 1;
        if answer.is_ready() && answer != Poll::Ready(seen.totals) {
            return Err(format!("completed with {answer:?}, not {:?}", seen.totals));
        }
        self.tape.push(Event::Rest(Seen { asleep, completed: self.completed, live, ..seen }));
        drop(world);
        lock(&self.world).fire_deferred(false);
        Ok(true)
    }

    /// Polls the crate, which may free its tables in turns of their own, until it completes. (open)
    fn complete(&mut self) -> Result<(), String> {
        while !self.completed && self.task.woken() {
            let rest = lock(&self.tape.0).pop();
            let place = self.tape.len();
            self.turn(false)?;
            if self.tape.len() != place + 2 {
                lock(&self.tape.0).extend(rest);
                return Ok(());
            }
            lock(&self.tape.0).remove(place);
        }
        Ok(())
    }

    /// Drops the future, then checks what outlives it.
    fn end(&mut self) -> Result<bool, String> {
        let place = self.tape.len();
        self.task.drop_future();
        // The order is not fixed; nor are the sinks that get the places of others that are dropped.
        let mut rest = lock(&self.tape.0).split_off(place);
        rest.retain(|event| !matches!(event, Event::Woken(_)));
        rest.sort_by_key(|event| format!("{event:?}"));
        lock(&self.tape.0).append(&mut rest);
        let mut world = lock(&self.world);
        let left = world.input.as_ref().map_or(0, StreamHandle::left);
        let taken: usize = world.sinks.iter().map(SinkHandle::taken).sum();
        let live = Arc::strong_count(&world.live) - 1;
        world.wind_up();
        // The handle of the input keeps the waker of the task, and so does the reference.
        world.input = None;
        world.signals.iter().for_each(|signals| signals.look().task = None);
        match self.task.wakers_kept() {
            0 if live == left + taken => Ok(false),
            kept => Err(format!("{live} items of {left} + {taken} and {kept} wakers are kept")),
        }
    }
}

/// One run of a script. The first side is observed, the other must do the same.
pub struct Run<'a> {
    bytes: &'a [u8],
    script: Script<'a>,
    settings: Settings,
    sides: [Side; 2],
    pub monitor: Monitor,
    /// The number of polls in a row in which nothing has happened.
    quiet: usize,
}

impl<'a> Run<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let (settings, script) = Script::new(bytes);
        let sides = [false, true].map(|is_reference| Side::new(settings, is_reference));
        Self { bytes, script, settings, sides, monitor: Monitor::new(settings), quiet: 0 }
    }

    /// Plays the script to its end. Returns the fault, if there is one.
    pub fn guarded(&mut self) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.play())) {
            Ok(played) => played.err(),
            Err(payload) => Some(match payload.downcast::<String>() {
                Ok(message) => *message,
                Err(payload) => (*payload.downcast::<&str>().unwrap_or_default()).to_owned(),
            }),
        }
    }

    fn play(&mut self) -> Result<(), String> {
        for _ in 0..MAX_STEPS {
            let Some(step) = self.script.step() else { break };
            if self.each(|side| side.step(step))? && step == Step::Run {
                self.run()?;
            }
        }
        if !self.settings.drops {
            self.each(|side| {
                lock(&side.world).wind_up();
                Ok(false)
            })?;
            self.run()?;
            if !self.settings.drops && self.sides.iter().any(|side| !side.completed) {
                return Err("all sinks are open, but the future does not complete".into());
            }
        }
        self.each(Side::end).map(drop)
    }

    /// Polls until the task sleeps. If that takes too long, the script ends here.
    fn run(&mut self) -> Result<(), String> {
        for _ in 0..MAX_POLLS {
            if !self.each(|side| side.turn(false))? {
                return Ok(());
            }
        }
        let sinks = lock(&self.sides[0].world).sinks.len();
        (self.script, self.settings.drops) = (Script::new(&[]).1, true);
        let spins = self.quiet > 100 + 3 * sinks;
        if spins { Err("the task is awake, but nothing happens".into()) } else { Ok(()) }
    }

    /// Lets each side act, and compares what happened. Returns whether they have polled.
    fn each(
        &mut self,
        mut act: impl FnMut(&mut Side) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let mut polled = false;
        for side in &mut self.sides {
            polled |= act(side).map_err(|fault| format!("{}: {fault}", side.name))?;
        }
        if self.sides[1].completed {
            self.sides[0].complete()?;
        }
        let news = |side: &mut Side| {
            let new = lock(&side.tape.0)[side.read..].to_vec();
            side.read += new.len();
            new
        };
        let [tape, expected] = self.sides.each_mut().map(news);
        let is_quiet = tape.len() <= 3; // a turn, and an input that is pending
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        for event in &tape {
            self.monitor.observe(event).map_err(|fault| format!("{event:?}: {fault}"))?;
        }
        // The moment at which a copy is made is not fixed.
        let fixed = |event: &&Event| !matches!(event, Event::Clone(_));
        let mut expected = expected.iter().filter(fixed);
        for event in tape.iter().filter(fixed).map(Some).chain([None]) {
            let expected = expected.next();
            if event != expected {
                return Err(format!("{event:?}\nbut the reference has {expected:?}"));
            }
        }
        Ok(polled)
    }

    /// Returns the events of each side: all of them, or those before a difference.
    pub fn story(&self, fault: Option<&str>, all: bool) -> String {
        let mut story = format!("script {:?}\n{:?}\n", self.bytes, self.settings);
        for side in &self.sides {
            let _ = writeln!(story, "{}:", side.name);
            let skip = if all { 0 } else { side.tape.len().saturating_sub(60) };
            for event in &lock(&side.tape.0)[skip..] {
                let _ = writeln!(story, "  {:.600}", format!("{event:?}"));
            }
        }
        let _ = fault.map(|fault| writeln!(story, "WRONG: {fault}"));
        story
    }
}
