//! The whole contract, on thousands of random schedules. Each schedule is a script: a string of
//! bytes that the crate `model` plays on the crate and on the reference.
//!
//! A script begins with settings, of one byte each, and the kind of the script. A test fixes some
//! of these bytes, and the others are random, so that rare settings occur in every kind of
//! schedule.
//!
//! The seeds are fixed. If a script fails, it is shortened for as long as it still fails. The test
//! then panics with the seed, the shortened script and its events. A debug build plays a tenth of
//! the scripts: use `cargo test --release --test random_schedules` after a change of the engine.

use model::{SITUATIONS, Situation, Summary, THOROUGH};

/// `SplitMix64` (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[4]
    }
}

/// The places of settings: the order in which `Script::settings` reads them.
const GROUP: usize = 0;
const BUDGET: usize = 1;
const OVERFLOW: usize = 4;
const FLUSH_EVERY: usize = 6;
const ON_DEMAND: usize = 8;
const LINGER: usize = 9;
const COOP: usize = 13;
const KIND: usize = 18;

// Their values, of which `below(n)` makes `value * n / 256`, and the kinds of scripts.
const MULTICAST: u8 = 128;
const BALANCE: u8 = 192;
const BUDGETS_TO_8: [u8; 6] = [22, 43, 64, 86, 107, 128];
const LARGE_BUDGETS: [u8; 3] = [0, 235, 255];
const CONFLATE: [u8; 1] = [7];
const ALL: u8 = 0;
const FEW_SINKS: u8 = 37;
const CROWDS: u8 = 74;
const BURSTS: u8 = 110;
const LEASES: u8 = 147;
const TIME: u8 = 183;
const STREAMS: u8 = 220;
const DEPARTURES: u8 = 254;
const RECONNECTS: u8 = 255;
/// The first step of a script of crowds that attaches one.
const CROWD: (usize, &[u8]) = (KIND + 1, &[87]);

/// Returns a random script. Some of its first bytes are chosen from those that are given.
fn script(seed: u64, fixed: &[(usize, &[u8])]) -> Vec<u8> {
    let mut random = Random(seed);
    let len = KIND + 2 + usize::from(random.byte()) * (1 + usize::from(random.byte() % 4));
    let mut script: Vec<_> = (0..len).map(|_| random.byte()).collect();
    for (place, choice) in fixed {
        script[*place] = choice[usize::from(script[*place]) % choice.len()];
    }
    script
}

/// Plays one script for each seed, and asserts that they reached each of `situations`. The seeds
/// are the numbers below a quarter of `schedules`, or a fortieth unless `THOROUGH`; or those that
/// the environment names, as in `SCHEDULES=100000` or `SCHEDULES=100000..200000`. If a script fails
/// and the environment names a file, as in `KEEP=fuzz/corpus/model/a-situation`, the script becomes
/// a seed of the fuzz target, which `fuzz_corpus` plays from then on.
#[track_caller]
fn play(schedules: u64, fixed: &[(usize, &[u8])], situations: &[Situation]) {
    let mut summary = Summary::default();
    for seed in seeds(schedules / if THOROUGH { 4 } else { 40 }) {
        let script = script(seed, fixed);
        let Ok(reached) = model::check(&script) else {
            let short = model::shrink(&script, |script| model::check(script).is_err());
            if let Some(file) = std::env::var_os("KEEP") {
                std::fs::write(file, &short).expect("the file cannot be written");
            }
            panic!("seed {seed}\n{}", model::run_traced(&short));
        };
        summary.add(&reached);
    }
    for situation in situations {
        let times = summary.times(*situation);
        let least = if THOROUGH { 20 } else { 3 };
        assert!(times >= least, "{situation:?}: only {times} times");
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let Ok(schedules) = std::env::var("SCHEDULES") else { return 0..default };
    let number = |digits: &str| digits.parse().expect("SCHEDULES must be a number or a range");
    match schedules.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => 0..number(&schedules),
    }
}

#[test]
fn schedules_of_all_kinds() {
    play(20_000, &[], &SITUATIONS);
}

#[test]
fn schedules_of_few_sinks() {
    play(20_000, &[(KIND, &[FEW_SINKS])], &[["poll_ready", "pending"], ["blocked", ""]]);
}

#[test]
fn schedules_of_crowds() {
    play(1_500, &[(KIND, &[CROWDS]), CROWD], &[["copied", ""], ["poll_flush", "pending"]]);
}

/// Many sinks wait for their flushes, and turns that read nothing come between bursts.
#[test]
fn schedules_of_lulls() {
    let (none, large): (&[u8], &[u8]) = (&[0], &LARGE_BUDGETS);
    let fixed = [
        (KIND, &[CROWDS][..]),
        CROWD,
        (GROUP, none),
        (BUDGET, large),
        (LINGER, none),
        (FLUSH_EVERY, none),
    ];
    play(3_000, &fixed, &[["poll_flush", "pending"]]);
}

#[test]
fn schedules_of_crowds_that_are_groups() {
    let groups: &[u8] = &[MULTICAST, BALANCE];
    let fixed = [(KIND, &[CROWDS][..]), CROWD, (GROUP, groups), (BUDGET, &BUDGETS_TO_8)];
    play(3_000, &fixed, &[["copied", ""], ["blocked", ""]]);
}

/// Groups and other crowds of up to thousands, most of which leave at once.
#[test]
fn schedules_of_crowds_that_leave_together() {
    let groups: &[u8] = &[0, MULTICAST, MULTICAST, BALANCE];
    let crowd: (usize, &[u8]) = (KIND + 1, &[65]);
    let fixed = [(KIND, &[DEPARTURES][..]), crowd, (GROUP, groups)];
    play(500, &fixed, &[["copied", ""], ["detached", "evicted"], ["detached", "requested"]]);
}

#[test]
fn schedules_of_clients_that_reconnect_and_do_not_read() {
    let fixed = [(KIND, &[RECONNECTS][..]), (GROUP, &[0])];
    play(20_000, &fixed, &[["detached", "replaced"], ["blocked", ""], ["discarded", "overflowed"]]);
}

#[test]
fn schedules_of_long_turns() {
    let (coop, flush_every): (&[u8], &[u8]) = (&[2, 5, 8, 11, 255], &[0]);
    let fixed =
        [(KIND, &[BURSTS][..]), (BUDGET, &LARGE_BUDGETS), (COOP, coop), (FLUSH_EVERY, flush_every)];
    play(6_000, &fixed, &[["discarded", "overflowed"], ["poll_ready", "yields"]]);
}

#[test]
fn schedules_of_leases_and_short_turns() {
    let fixed = [(KIND, &[LEASES][..]), (BUDGET, &BUDGETS_TO_8)];
    play(20_000, &fixed, &[["detached", "evicted"], ["detached", "requested"]]);
}

#[test]
fn schedules_of_groups() {
    let kinds: &[u8] = &[ALL, FEW_SINKS, LEASES, TIME, STREAMS];
    let fixed = [(KIND, kinds), (GROUP, &[MULTICAST, BALANCE, BALANCE])];
    play(20_000, &fixed, &[["discarded", "evicted"], ["discarded", "failed"], ["copied", ""]]);
}

#[test]
fn schedules_of_time() {
    let fixed = [(KIND, &[TIME][..]), (LINGER, &[0, 3, 7])];
    play(20_000, &fixed, &[["detached", "idle"], ["detached", "stalled"]]);
}

#[test]
fn schedules_of_items_that_supersede_others() {
    let fixed = [(KIND, &[ALL, FEW_SINKS][..]), (OVERFLOW, &CONFLATE)];
    play(20_000, &fixed, &[["discarded", "conflated"], ["discarded", "overflowed"]]);
}

#[test]
fn schedules_of_sinks_on_demand() {
    let fixed = [(KIND, &[ALL, LEASES, TIME][..]), (ON_DEMAND, &[3, 7, 11])];
    play(20_000, &fixed, &[["on demand", "made"], ["on demand", "nothing"]]);
}

#[test]
fn schedules_of_streams_that_yield() {
    play(20_000, &[(KIND, &[STREAMS])], &[["finish", ""], ["abort", ""]]);
}

#[test]
fn no_bytes_are_a_script() {
    model::run(&[]);
}

#[test]
fn what_fails_is_shortened_while_it_fails() {
    let script: Vec<u8> = (0..100).collect();
    let fails = |script: &[u8]| script.contains(&17) && script.contains(&80);
    assert_eq!(model::shrink(&script, fails), [17, 80]);
}
