//! Guarantees 1 to 11 and 13 and the attachment rules, on thousands of schedules that nobody thought
//! of: each is a string of bytes that `common::model` plays and checks event by event.
//!
//! The seeds are fixed. A failing one is printed with its script, shortened for as long as it still
//! fails, and its story; the script can be put below, as one of those that are kept.

mod common;

use common::model::{self, Summary};

/// `SplitMix64` (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u8) -> u8 {
        u8::try_from(self.next() % u64::from(end)).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[4]
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.below(u8::try_from(from.len()).unwrap()))]
    }
}

/// Any bytes: all kinds of events in equal parts.
fn uniform(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..8 + random.next() % 300).map(|_| random.byte()).collect()
}

/// Some kinds of events are left out, others frequent, and there are few keys, terms and cues: that
/// gets further into one situation than all kinds at once ever do.
fn swarm(seed: u64) -> Vec<u8> {
    const ITEMS: u8 = 0;
    const ATTACH: u8 = 7;
    const DETACH: u8 = 12;
    const EVICT: u8 = 13;
    const STREAMS: u8 = 14;
    const LEASE: u8 = 15;
    const CUE: u8 = 17;
    const INSIDE: u8 = 23;
    const WAKER: u8 = 26;
    const POLL: u8 = 27;
    const RUN: u8 = 29;

    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    let pace = 1 + 3 * random.below(4);
    let mut kinds = vec![ITEMS, RUN, CUE];
    let mut weigh = |kind, weight| kinds.extend(std::iter::repeat_n(kind, usize::from(weight)));
    weigh(ITEMS, pace + random.below(4 * pace));
    weigh(RUN, pace + random.below(4 * pace));
    weigh(CUE, random.below(7 * pace));
    weigh(ATTACH, 1 + random.below(3));
    weigh(EVICT, random.below(2));
    for kind in [DETACH, STREAMS, LEASE, INSIDE, WAKER, POLL] {
        weigh(kind, random.below(3));
    }
    let keys = 1 + random.below(4);
    let sinks = 1 + random.below(6);
    let cues: Vec<_> = (0..2 + random.below(6)).map(|_| random.byte()).collect();
    let terms: Vec<_> = (0..=random.below(4)).map(|_| [(); 3].map(|()| random.byte())).collect();

    for n in 0..6 + random.below(90) {
        let mut kind = if n < 2 { ATTACH } else { random.pick(&kinds) };
        script.push(kind);
        if kind == INSIDE {
            script.push(random.byte() & 0b11_1111);
            kind = random.pick(&[ITEMS, ATTACH, DETACH, EVICT, STREAMS, LEASE, CUE, CUE]);
            script.push(kind);
        }
        match kind {
            ITEMS => {
                let key = if random.below(12) == 0 { random.below(6) } else { random.below(keys) };
                script.push(key + 6 * random.below(5));
            }
            ATTACH => {
                let mut terms = random.pick(&terms);
                if random.below(3) == 0 {
                    terms = terms.map(|_| random.byte());
                }
                terms[0] = terms[0] & !3 | random.below(keys);
                script.extend(terms);
            }
            DETACH | EVICT => script.push(random.below(keys)),
            STREAMS | LEASE | WAKER => script.push(random.byte()),
            CUE => script.extend([random.below(sinks), random.pick(&cues)]),
            _ => {}
        }
    }
    script
}

/// Plays one script for each seed.
fn play(name: &str, seeds: std::ops::Range<u64>, script: fn(u64) -> Vec<u8>) -> Summary {
    let mut summary = Summary::default();
    for seed in seeds {
        let script = script(seed);
        let Ok(came_to) = model::check(&script) else {
            let short = model::shrink(&script, |script| model::check(script).is_err());
            panic!("{name} schedule, seed {seed}\n{}", model::run_traced(&short));
        };
        summary.add(&came_to);
    }
    summary
}

/// So that the schedules are known to go where they are meant to.
fn assert_seen(summary: &Summary) {
    let situations = [
        "blocked",
        "close pending",
        "completed",
        "copied",
        "delivered",
        "detached: evicted",
        "detached: failed",
        "detached: finished",
        "detached: limited",
        "detached: overflowed",
        "detached: refused",
        "detached: replaced",
        "detached: requested",
        "discarded: evicted",
        "discarded: failed",
        "discarded: not admitted",
        "discarded: overflowed",
        "flush pending",
        "lost",
        "order: finish",
        "orders stutter",
        "ready stutters",
        "stale wake",
        "unmatched",
    ];
    for situation in situations {
        let times = summary.0.get(situation).copied().unwrap_or(0);
        assert!(times >= 20, "{situation}: only {times} times");
    }
    let given_up = summary.0.get("given up").copied().unwrap_or(0);
    assert!(given_up <= 10, "the model lost its way {given_up} times");
}

#[test]
fn schedules_of_few_kinds_keep_the_contract() {
    assert_seen(&play("swarm", 0..SWARMS, swarm));
}

#[test]
fn schedules_of_all_kinds_keep_the_contract() {
    play("uniform", 0..UNIFORMS, uniform);
}

const SWARMS: u64 = 6_000;
const UNIFORMS: u64 = 5_000;

// Scripts that are kept, as `model::shrink` left them.

#[test]
fn a_sink_that_is_closing_is_not_flushed_when_its_lease_is_detached() {
    model::run(&[
        7, 0, 7, 7, 1, 0, 4, 17, 0, 10, 0, 1, 29, 17, 0, 12, 12, 1, 29, 17, 0, 27, 29, 15, 4, 29,
    ]);
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
