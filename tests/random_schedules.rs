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

// The first bytes of a step.
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
/// In the first byte of the settings.
const MULTICAST: u8 = 16;
/// 128 or 256.
const LARGE_BUDGET: u8 = 0b1110;
/// In the third byte: what a cooperative budget leaves of it, and the largest window.
const NO_COOP: u8 = 0b1111;
const LARGE_WINDOW: u8 = 0b0111;
// Places.
const INSIDE_INPUT: u8 = 0;
const INSIDE_ORDERS: u8 = 2;
const INSIDE_HOOK: u8 = 3;
// Cues.
const PARK: u8 = 0;
const OPEN: u8 = 4;
const ALLOW: u8 = 7;
const YIELD_OFTEN: u8 = 29;

/// Any bytes: all kinds of events in equal parts.
fn uniform(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..8 + random.next() % 300).map(|_| random.byte()).collect()
}

/// Some kinds of events are left out, others frequent, and there are few keys, terms and cues: that
/// gets further into one situation than all kinds at once ever do.
fn swarm(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    if random.below(2) == 0 {
        script[2] &= NO_COOP;
    }
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

/// One or two groups of many sinks on few terms. Items come in small bursts, with one poll after each:
/// served over several turns, flushed over several dry ones, and left by some while others wait.
fn crowd(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    script[0] |= MULTICAST;
    if random.below(3) != 0 {
        script[2] &= NO_COOP;
    }
    // One item in each turn, which then runs dry: with a large budget and a large window.
    let trickle = random.below(4) == 0;
    if trickle {
        script[0] |= LARGE_BUDGET;
        script[2] |= LARGE_WINDOW;
    }
    let keys = 1 + random.below(2);
    let terms: Vec<_> = (0..=random.below(4)).map(|_| [(); 3].map(|()| random.byte())).collect();
    let members = 4 + random.below(24);
    let mut cues: Vec<_> = (0..2 + random.below(4)).map(|_| random.byte()).collect();
    cues.push(OPEN);
    for _ in 0..members {
        let [_, b, c] = random.pick(&terms);
        // Limits and refusals are for few: the others stay.
        let (a, b) = (random.pick(&terms)[0], if random.below(4) == 0 { b } else { 0 });
        script.extend([ATTACH, a & !3 | random.below(keys), b, c]);
    }
    script.push(RUN);
    if trickle {
        for _ in 0..16 + random.below(8) {
            script.extend([ITEMS, random.below(keys), POLL]);
        }
    }
    let pace = random.pick(&[1, 4, 8]);
    for _ in 0..6 + random.below(60) {
        match random.below(12 + 2 * pace) {
            0 => script.extend([random.pick(&[DETACH, EVICT]), random.below(keys)]),
            1 => script.extend([LEASE, random.byte()]),
            2 => script.push(RUN),
            3 => script.extend([STREAMS, random.byte()]),
            4 => {
                let [a, b, c] = random.pick(&terms);
                script.extend([ATTACH, a & !3 | random.below(keys), b, c]);
            }
            5..=8 => script.extend([CUE, random.below(members), random.pick(&cues)]),
            9 => {
                let inside = [INSIDE, random.byte(), CUE, random.below(members)];
                script.extend(inside);
                script.push(random.pick(&cues));
            }
            _ => script.extend([ITEMS, random.below(keys) + 6 * random.below(2), POLL]),
        }
    }
    script
}

/// Large budgets, many items between two polls, and sinks that may lose items: what yields, yields late
/// in a busy turn, and often.
fn busy(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    // Budgets of 64 and more; seldom anything that is not admitted.
    let a = random.pick(&[13, 14, 15, 15]) | random.byte() & MULTICAST;
    let coop = random.pick(&[0, 0x30, 0x70, 0xb0, 0xf0, 0xf0, 0xa0, 0xe0]);
    let mut script = vec![a, random.byte(), random.byte() & NO_COOP | coop];
    let keys = 1 + random.below(3);
    let sinks = 2 + random.below(5);
    let mut cues: Vec<_> = (0..=random.below(3)).map(|_| random.byte()).collect();
    cues.extend([PARK, OPEN, YIELD_OFTEN + 64 * random.below(4), ALLOW]);
    for _ in 0..sinks {
        // No limit, no lease, any buffer and policy, and perhaps not ready.
        script.extend([
            ATTACH,
            random.byte() & !3 | random.below(keys),
            0,
            random.pick(&[0, 0, 64]),
        ]);
    }
    for _ in 0..2 + random.below(6) {
        for _ in 0..4 + random.below(14) {
            script.extend([ITEMS, random.below(keys) + 6 * 4]);
        }
        for _ in 0..random.below(4) {
            script.extend([CUE, random.below(sinks), random.pick(&cues)]);
        }
        match random.below(8) {
            0 => script.extend([DETACH, random.below(keys)]),
            1 => script.extend([ATTACH, random.byte() & !3 | random.below(keys), 0, 0]),
            _ => {}
        }
        if random.below(4) == 0 {
            // It yields on and on, while orders are applied.
            script.extend([CUE, random.below(sinks), YIELD_OFTEN + 64 * 3]);
            for _ in 0..24 {
                script.extend([DETACH, 3, POLL]);
            }
        }
        for _ in 0..random.below(20) {
            match random.below(4) {
                0 => script.extend([POLL, ITEMS, random.below(keys)]),
                _ => script.push(POLL),
            }
        }
        script.push(RUN);
    }
    script
}

/// Clients that come, go and come back: leases end right before an order or an item is read, or while
/// one is, and the queue of the old sink is not for the new one.
fn reconnect(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    script[2] &= NO_COOP;
    let keys = 1 + random.below(3);
    let attach = |random: &mut Random, script: &mut Vec<u8>| {
        let lease = random.below(4);
        // One lease in four has a second one beside it.
        let leases = 4 | lease | if random.below(4) == 0 { 0x20 | random.below(4) << 3 } else { 0 };
        let b = if random.below(4) == 0 { random.byte() } else { 0 };
        let cue = random.pick(&[0, 64, 64, 128]);
        script.extend([ATTACH, random.byte() & !3 | random.below(keys), b, leases | cue]);
    };
    for _ in 0..=random.below(5) {
        attach(random, &mut script);
    }
    for _ in 0..4 + random.below(40) {
        match random.below(16) {
            0..=4 => script.extend([ITEMS, random.below(keys) + 6 * random.below(3)]),
            5 | 6 => script.extend([LEASE, 0xc0 | random.below(16)]),
            7 => {
                script.extend([LEASE, random.below(16)]);
                attach(random, &mut script);
            }
            8 => {
                let place = random.pick(&[INSIDE_INPUT, INSIDE_ORDERS, INSIDE_HOOK]);
                script.extend([INSIDE, place, LEASE, random.pick(&[0, 0xc0]) | random.below(16)]);
            }
            9 => attach(random, &mut script),
            10 => script.extend([DETACH, random.below(keys)]),
            11 => script.extend([CUE, random.below(6), random.byte()]),
            12 => script.extend([CUE, random.below(6), random.pick(&[PARK, OPEN, ALLOW])]),
            13 => script.push(POLL),
            14 => script.extend([STREAMS, random.byte()]),
            _ => script.push(RUN),
        }
    }
    script
}

/// Small budgets and groups whose members have leases, limits and a catch-all among them: orders that
/// detach or evict a group go on for several turns, in which leases end, items are held, members fail,
/// limits are reached and others attach.
fn short_turns(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    // Budgets from 1 to 8; seldom anything that is not admitted.
    let refuses = random.pick(&[0, 0, 0, 0xc0]);
    let multicast = random.pick(&[MULTICAST, MULTICAST, 0]);
    let mut script = vec![random.below(8) | multicast | refuses, random.byte(), random.byte()];
    script[2] &= NO_COOP;
    let keys = 1 + random.below(2);
    let attach = |random: &mut Random, script: &mut Vec<u8>| {
        let limit = random.pick(&[0, 0, 0, 5, 6, 7, 15]);
        let catch_all = random.pick(&[0, 0, 0xc0]);
        let leases = random.pick(&[0, 4, 4, 0x24]) | random.below(4) | random.below(4) << 3;
        let cue = random.pick(&[0, 64, 64, 128]);
        let a = random.byte() & !3 | random.below(keys);
        script.extend([ATTACH, a, limit | catch_all, leases | cue]);
    };
    for _ in 0..2 + random.below(9) {
        attach(random, &mut script);
    }
    script.push(RUN);
    for _ in 0..8 + random.below(50) {
        match random.below(20) {
            0..=3 => script.extend([ITEMS, random.below(keys) + 6 * random.below(2)]),
            // Nobody has this key.
            4 => script.extend([ITEMS, 5]),
            5 | 6 => script.extend([DETACH, random.below(keys)]),
            7 | 8 => script.extend([EVICT, random.below(keys)]),
            9 | 10 => script.extend([LEASE, random.pick(&[0, 0, 0xc0]) | random.below(16)]),
            11 => attach(random, &mut script),
            12 => {
                let place = random.pick(&[INSIDE_INPUT, INSIDE_ORDERS, INSIDE_HOOK]);
                let step = random.pick(&[LEASE, EVICT, DETACH]);
                script.extend([INSIDE, place, step, random.below(4)]);
            }
            13 | 14 => script.extend([CUE, random.below(12), random.pick(&[PARK, OPEN, ALLOW])]),
            15 => script.extend([CUE, random.below(12), random.byte()]),
            16 => script.extend([STREAMS, random.byte()]),
            17 => script.push(RUN),
            _ => script.push(POLL),
        }
    }
    script
}

/// Plays one script for each seed: `default` of them, or those that the environment names, as in
/// `SCHEDULES=100000` or `SCHEDULES=100000..200000`.
fn play(name: &str, default: u64, script: fn(u64) -> Vec<u8>) -> Summary {
    let mut summary = Summary::default();
    for seed in seeds(default) {
        let script = script(seed);
        let Ok(came_to) = model::check(&script) else {
            let short = model::shrink(&script, |script| model::check(script).is_err());
            panic!("{name} schedule, seed {seed}\n{}", model::run_traced(&short));
        };
        summary.add(&came_to);
        *summary.0.entry("scripts").or_default() += 1;
    }
    summary
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let Ok(schedules) = std::env::var("SCHEDULES") else { return 0..default };
    let number = |digits: &str| digits.parse().expect("SCHEDULES is a number, or a range of two");
    match schedules.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => 0..number(&schedules),
    }
}

/// Asserts that the schedules go where they are meant to, and that the model can follow.
#[track_caller]
fn assert_seen(summary: &Summary, situations: &[&str]) {
    let scripts = summary.0.get("scripts").copied().unwrap_or(0);
    for situation in situations {
        let times = summary.0.get(situation).copied().unwrap_or(0);
        assert!(times >= 20, "{situation}: only {times} times");
    }
    let given_up = summary.0.get("given up").copied().unwrap_or(0);
    assert!(given_up <= 20.max(scripts / 500), "the model gave up {given_up} times in {scripts}");
}

#[test]
fn schedules_of_few_kinds_keep_the_contract() {
    let summary = play("swarm", SWARMS, swarm);
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
        "lease ended",
        "lost",
        "order: finish",
        "orders yield",
        "ready yields",
        "stale wake",
        "unmatched",
    ];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_all_kinds_keep_the_contract() {
    play("uniform", UNIFORMS, uniform);
}

#[test]
fn schedules_of_large_groups_keep_the_contract() {
    let summary = play("crowd", CROWDS, crowd);
    let situations = ["blocked", "served over several turns", "order: finish", "lease ended"];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_busy_turns_keep_the_contract() {
    let summary = play("busy", BUSY, busy);
    let situations = ["asked again after many operations", "ready yields", "discarded: overflowed"];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_leases_keep_the_contract() {
    let summary = play("reconnect", RECONNECTS, reconnect);
    let situations = ["lease ended", "detached: evicted", "detached: requested", "order: attach"];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_short_turns_keep_the_contract() {
    let summary = play("short", SHORT, short_turns);
    let situations = [
        "blocked",
        "copied",
        "detached: evicted",
        "detached: limited",
        "detached: requested",
        "discarded: evicted",
        "lease ended",
        "served over several turns",
        "unmatched",
    ];
    assert_seen(&summary, &situations);
}

/// How many schedules there are of a kind, without and with optimisation, which is ten times as fast.
const fn schedules(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

const SWARMS: u64 = schedules(5_000, 20_000);
const UNIFORMS: u64 = schedules(5_000, 20_000);
const CROWDS: u64 = schedules(600, 4_000);
const BUSY: u64 = schedules(800, 6_000);
const SHORT: u64 = schedules(2_000, 20_000);
const RECONNECTS: u64 = schedules(5_000, 20_000);

// Scripts that are kept, as `model::shrink` left them.

#[test]
fn a_sink_that_is_closing_is_not_flushed_when_its_lease_is_detached() {
    model::run(&[
        7, 0, 7, 7, 1, 0, 4, 17, 0, 10, 0, 1, 29, 17, 0, 12, 12, 1, 29, 17, 0, 27, 29, 15, 4, 29,
    ]);
}

#[test]
fn a_lease_that_ends_while_the_attachment_is_announced_ends_after_the_order() {
    model::run(&[
        198, 254, 27, 200, 35, 111, 11, 59, 183, 219, 222, 117, 72, 187, 248, 37, 51, 88, 121, 187,
    ]);
    model::run(&[
        79, 8, 3, 7, 33, 0, 4, 7, 8, 0, 70, 7, 189, 0, 6, 14, 9, 14, 118, 29, 0, 1, 23, 0, 15, 1,
        15, 192, 0, 13, 14, 163, 23, 3, 15, 0, 0, 135, 27,
    ]);
}

#[test]
fn a_pending_flush_is_not_repeated_when_a_sink_is_retried() {
    model::run(&[
        30, 28, 252, 7, 202, 0, 64, 7, 168, 0, 0, 7, 44, 0, 0, 7, 145, 0, 0, 7, 200, 0, 0, 0, 25,
        0, 26, 0, 25, 0, 26, 0, 24, 0, 24, 17, 4, 5, 17, 2, 7, 7, 38, 0, 0, 27, 27,
    ]);
}

#[test]
fn a_new_sink_inherits_what_the_one_before_it_has_left_in_the_slot() {
    // A wake, in the turn in which it was dropped.
    model::run(&[
        5, 125, 136, 80, 202, 249, 178, 226, 32, 12, 135, 36, 84, 39, 62, 104, 188, 12, 152, 212,
        75, 126, 221, 205, 112, 230, 203, 249, 115, 114, 143, 17, 102, 64, 137, 229, 206, 126, 197,
        65, 28,
    ]);
    // A wake, which outlasts an answer that it is ready.
    model::run(&[
        254, 87, 15, 7, 36, 0, 17, 0, 132, 17, 0, 218, 15, 157, 14, 27, 12, 0, 13, 0, 7, 36, 90,
        145, 0, 6, 27,
    ]);
    // A flush, between the reading of the order and the attachment.
    model::run(&[
        214, 117, 1, 7, 76, 0, 135, 7, 28, 85, 70, 0, 0, 15, 205, 0, 1, 23, 3, 15, 202, 6, 0, 2,
        23, 27, 3, 6, 23, 2, 15, 198, 29,
    ]);
}

#[test]
fn an_order_need_not_pay_for_those_that_leases_have_detached() {
    model::run(&[
        90, 157, 7, 7, 76, 0, 154, 7, 76, 0, 165, 7, 108, 53, 154, 7, 108, 0, 165, 7, 108, 0, 165,
        7, 76, 0, 154, 7, 76, 0, 165, 7, 108, 35, 165, 7, 76, 0, 165, 7, 76, 35, 165, 7, 108, 0,
        154, 7, 108, 35, 165, 7, 108, 0, 165, 7, 76, 0, 154, 7, 108, 0, 154, 7, 108, 0, 154, 7,
        108, 35, 165, 7, 76, 0, 165, 7, 76, 0, 154, 7, 76, 0, 165, 7, 76, 0, 154, 7, 108, 0, 165,
        7, 76, 0, 154, 7, 76, 0, 154, 7, 108, 0, 165, 7, 76, 0, 165, 7, 0, 165, 29, 0, 0, 0, 6, 0,
        6, 17, 11, 4, 29, 12, 0, 25, 109, 0, 6, 27, 7, 108, 35, 165, 0, 6, 27, 0, 0, 27, 0, 0, 27,
        0, 0, 27, 0, 0, 27, 15, 213, 14, 120, 0, 6, 27, 14, 16, 0, 6, 27, 0, 0, 27, 0, 0, 27, 15,
        199, 14, 6, 0, 6, 27,
    ]);
}

#[test]
fn an_item_that_yielded_is_paid_for_once() {
    model::run(&[
        153, 166, 2, 7, 228, 0, 144, 7, 24, 0, 76, 7, 24, 0, 76, 7, 24, 0, 224, 7, 228, 0, 144, 7,
        24, 85, 224, 7, 248, 0, 224, 29, 17, 5, 164, 0, 6, 27, 0, 0, 27, 0, 0, 27, 15, 136, 0, 6,
        27, 3, 4, 0, 0, 27, 14, 131, 0, 6, 27, 0, 6, 27, 0, 6, 27,
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
