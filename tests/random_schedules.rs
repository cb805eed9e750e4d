//! Guarantees 1 to 11 and 13 and the rules for attachments, on thousands of random schedules. Each
//! schedule is a script: a string of bytes that `common::model` plays and checks event by event.
//!
//! The seeds are fixed. If a script fails, it is shortened for as long as it still fails. The test
//! then panics with the seed, the shortened script and its events. The shortened script can be
//! added to the regression tests at the end of this file.

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

// The first bytes of steps.
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
const TICK: u8 = 224;
const ATTACH_MORE: u8 = 240;
/// The bit of the first settings byte that sets `multicast`.
const MULTICAST: u8 = 16;
/// The bits of the first settings byte that set a budget of 128 or 256.
const LARGE_BUDGET: u8 = 0b1110;
/// The bits of the third settings byte that do not select a cooperative budget.
const NO_COOP: u8 = 0b1111;
/// The bits of the third settings byte that set the largest window.
const LARGE_WINDOW: u8 = 0b0111;
/// The bit of the second settings byte that is set if two more bytes follow.
const MORE: u8 = 32;
// Bits of the fourth settings byte.
const CONFLATE: u8 = 4;
const BALANCE: u8 = 8;
const ON_DEMAND: u8 = 16;
const LINGER: u8 = 64;
// Places for `INSIDE`.
const INSIDE_INPUT: u8 = 0;
const INSIDE_ORDERS: u8 = 2;
const INSIDE_HOOK: u8 = 3;
// Cues.
const PARK: u8 = 0;
const OPEN: u8 = 4;
const ALLOW: u8 = 7;
const HOLD_FLUSH: u8 = 10;
const HOLD_CLOSE: u8 = 12;
const RELEASE_FLUSH: u8 = 14;
const RELEASE_CLOSE: u8 = 16;
const YIELD: u8 = 23;
const YIELD_OFTEN: u8 = 29;

/// Returns random settings: three bytes, or five if the second one says so.
fn settings(random: &mut Random) -> Vec<u8> {
    let mut settings: Vec<_> = (0..3).map(|_| random.byte()).collect();
    if settings[1] & MORE != 0 {
        settings.extend([random.byte(), random.byte()]);
    }
    settings
}

/// Returns five bytes of random settings. The fourth byte is `more`.
fn more_settings(random: &mut Random, more: u8) -> Vec<u8> {
    let [pace, buffer, flush, ticks] = [(); 4].map(|()| random.byte());
    let budget = if random.below(2) == 0 { random.below(8) } else { random.byte() & 15 };
    // In few scripts, some items are not admitted.
    let pace = budget | pace & MULTICAST | random.pick(&[0, 0, 0, pace & 0xe0]);
    let flush = if random.below(4) == 0 { flush } else { flush & NO_COOP };
    vec![pace, buffer | MORE, flush, more, ticks]
}

/// Returns random bytes, which contain all kinds of events in equal parts.
fn uniform(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..8 + random.next() % 300).map(|_| random.byte()).collect()
}

/// Returns a script in which some kinds of events are left out and others are frequent, with few
/// keys, terms and cues. It explores one situation further than a mix of all kinds of events does.
fn swarm(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script = settings(random);
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
    for kind in [DETACH, STREAMS, LEASE, INSIDE, WAKER, POLL, TICK, ATTACH_MORE] {
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
            kind = random.pick(&[ITEMS, ATTACH, DETACH, EVICT, STREAMS, LEASE, CUE, CUE, TICK]);
            script.push(kind);
        }
        match kind {
            ITEMS => {
                let key = if random.below(12) == 0 { random.below(6) } else { random.below(keys) };
                script.push(key + 6 * random.below(5));
            }
            ATTACH | ATTACH_MORE => {
                let mut terms = random.pick(&terms);
                if random.below(3) == 0 {
                    terms = terms.map(|_| random.byte());
                }
                terms[0] = terms[0] & !3 | random.below(keys);
                script.extend(terms);
                if kind == ATTACH_MORE {
                    script.push(random.byte());
                }
            }
            DETACH | EVICT => script.push(random.below(keys)),
            STREAMS | LEASE | WAKER => script.push(random.byte()),
            CUE => script.extend([random.below(sinks), random.pick(&cues)]),
            _ => {}
        }
    }
    script
}

/// Returns a script with one or two groups of many sinks, which have few different terms. Items
/// come in small bursts, with one poll after each. Items are served over several turns and flushed
/// over several dry turns, and some members leave while others wait.
fn crowd(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    script[0] |= MULTICAST;
    if random.below(3) != 0 {
        script[2] &= NO_COOP;
    }
    // The input returns one item in each turn and then runs dry. The budget and the window are
    // large.
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
        // Few members can have limits or be refused, so the others stay.
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

/// Returns a script with a large budget, many items between two polls, and sinks that may lose
/// items. The sinks that yield do so often, and late in a busy turn.
fn busy(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    // Budgets of 64 and more. All items are admitted.
    let a = random.pick(&[13, 14, 15, 15]) | random.byte() & MULTICAST;
    let coop = random.pick(&[0, 0x30, 0x70, 0xb0, 0xf0, 0xf0, 0xa0, 0xe0]);
    let mut script = vec![a, random.byte(), random.byte() & NO_COOP | coop];
    let keys = 1 + random.below(3);
    let sinks = 2 + random.below(5);
    let mut cues: Vec<_> = (0..=random.below(3)).map(|_| random.byte()).collect();
    cues.extend([PARK, OPEN, YIELD_OFTEN + 64 * random.below(4), ALLOW]);
    for _ in 0..sinks {
        // Any buffer and policy, no limit and no lease. Some sinks are not ready.
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
            // A sink keeps yielding while orders are applied.
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

/// Returns a script with clients that disconnect and reconnect. Leases end right before an order or
/// an item is read, or while it is read, and the new sink does not get the queue of the old one.
fn reconnect(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let mut script: Vec<_> = (0..3).map(|_| random.byte()).collect();
    script[2] &= NO_COOP;
    let keys = 1 + random.below(3);
    let attach = |random: &mut Random, script: &mut Vec<u8>| {
        let lease = random.below(4);
        // One attachment in four has a second lease.
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

/// Returns a script with a small budget and with groups whose members have leases and limits, or
/// are the catch-all. Orders that detach or evict a group take several turns. In these turns leases
/// end, items are held, members fail, limits are reached and other sinks are attached.
fn short_turns(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    // Budgets from 1 to 8. In few scripts, some items are not admitted.
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
            // No attachment has this key.
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

/// Returns a script with ticks. Sinks with time-outs are stuck in each of their operations, are
/// woken, or have nothing to do, and flushes linger. In one script in four, all time-outs are the
/// defaults.
fn timed(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let linger = random.pick(&[0, 0, 1, 2, 3]) * LINGER;
    let mut script = more_settings(random, linger);
    let keys = 1 + random.below(4);
    let attach = if random.below(4) == 0 { ATTACH } else { ATTACH_MORE };
    let join = |random: &mut Random, script: &mut Vec<u8>| {
        let limit = random.pick(&[0, 0, 0, 5, 6, 15]);
        let leases = random.pick(&[0, 0, 4]) | random.below(4);
        let cue = random.pick(&[0, 0, 64, 128]);
        let a = random.byte() & !3 | random.below(keys);
        script.extend([attach, a, limit, leases | cue]);
        if attach == ATTACH_MORE {
            script.push(random.byte());
        }
    };
    for _ in 0..=random.below(6) {
        join(random, &mut script);
    }
    script.push(RUN);
    let cues =
        [PARK, PARK, OPEN, ALLOW, HOLD_FLUSH, HOLD_CLOSE, RELEASE_FLUSH, RELEASE_CLOSE, YIELD];
    let rest = random.pick(&[RUN, RUN, POLL]);
    for _ in 0..8 + random.below(50) {
        match random.below(20) {
            0..=5 => script.extend([TICK, random.pick(&[rest, rest, TICK, POLL])]),
            6..=9 => script.extend([ITEMS, random.below(keys) + 6 * random.below(2)]),
            10 | 11 => script.extend([CUE, random.below(8), random.pick(&cues)]),
            12 => script.extend([CUE, random.below(8), random.byte()]),
            13 => {
                let place = random.pick(&[INSIDE_INPUT, INSIDE_ORDERS, INSIDE_HOOK]);
                script.extend([INSIDE, place, TICK]);
            }
            14 => join(random, &mut script),
            15 => script.extend([random.pick(&[DETACH, DETACH, EVICT]), random.below(keys)]),
            16 => script.extend([random.pick(&[LEASE, STREAMS]), random.byte()]),
            _ => script.push(random.pick(&[POLL, rest, rest])),
        }
    }
    script
}

/// Returns a script with items that supersede waiting items, for sinks that take an item from time
/// to time.
fn latest(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let conflate = random.pick(&[CONFLATE, CONFLATE, 0]) | random.pick(&[0, 1, 2, 2, 3]);
    let mut script = more_settings(random, conflate);
    let keys = 1 + random.below(2);
    let join = |random: &mut Random, script: &mut Vec<u8>| {
        let limit = random.pick(&[0, 0, 0, 5, 6, 15]) | random.pick(&[0, 0, 0, 0xc0]);
        let leases = random.pick(&[0, 0, 4]) | random.below(4);
        let cue = random.pick(&[0, 64, 64, 128]);
        let a = random.byte() & !3 | random.below(keys);
        script.extend([ATTACH_MORE, a, limit, leases | cue, random.pick(&[0, 0xc0, 0xc0])]);
    };
    for _ in 0..=random.below(4) {
        join(random, &mut script);
    }
    script.push(RUN);
    for _ in 0..8 + random.below(50) {
        match random.below(20) {
            0..=7 => script.extend([ITEMS, random.below(keys) + 6 * random.below(4)]),
            8 | 9 => {
                script.extend([CUE, random.below(5), random.pick(&[PARK, OPEN, ALLOW, ALLOW])]);
            }
            10 => script.extend([CUE, random.below(5), YIELD + 64 * random.below(4)]),
            11 => script.extend([CUE, random.below(5), random.byte()]),
            12 => join(random, &mut script),
            13 => script.extend([random.pick(&[DETACH, EVICT]), random.below(keys)]),
            14 => script.extend([random.pick(&[LEASE, STREAMS]), random.byte()]),
            15 => script.extend([INSIDE, random.byte(), CUE, random.below(5), random.byte()]),
            16 | 17 => script.push(POLL),
            _ => script.push(RUN),
        }
    }
    script
}

/// Returns a script with sinks that are attached on demand. They leave when they are idle or have
/// reached their limits.
fn on_demand(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let d = (ON_DEMAND * (1 + random.below(3))) | random.pick(&[0, 0, CONFLATE, LINGER]);
    let mut script = more_settings(random, d);
    let keys = 1 + random.below(6);
    for _ in 0..random.below(3) {
        let terms = [(); 4].map(|()| random.byte());
        script.push(ATTACH_MORE);
        script.extend(terms);
    }
    for _ in 0..8 + random.below(50) {
        match random.below(20) {
            0..=6 => script.extend([ITEMS, random.below(keys) + 6 * random.below(3)]),
            7..=9 => script.extend([TICK, random.pick(&[POLL, RUN, RUN])]),
            10 => script.extend([CUE, random.below(6), random.byte()]),
            11 => script.extend([CUE, random.below(6), random.pick(&[PARK, OPEN, HOLD_CLOSE])]),
            12 => script.extend([random.pick(&[DETACH, EVICT]), random.below(4)]),
            13 => script.extend([LEASE, random.byte()]),
            14 => {
                let step = random.pick(&[LEASE, EVICT, DETACH, STREAMS]);
                script.extend([INSIDE, random.pick(&[INSIDE_INPUT, INSIDE_HOOK, INSIDE_HOOK])]);
                script.extend([step, random.byte()]);
            }
            15 => script.extend([ATTACH, random.byte(), random.byte(), random.byte()]),
            16 => script.push(POLL),
            17 => script.extend([STREAMS, random.byte()]),
            _ => script.push(RUN),
        }
    }
    script
}

/// Returns a script with sinks that share the items of a key. Some sinks are busy. Some leave, fail
/// or stall while items wait for them.
fn shared(seed: u64) -> Vec<u8> {
    let random = &mut Random(seed);
    let more = random.pick(&[0, 0, 0, CONFLATE, ON_DEMAND, LINGER]);
    let mut script = more_settings(random, BALANCE | more);
    let keys = 1 + random.below(2);
    let times = random.below(3) == 0;
    let join = |random: &mut Random, script: &mut Vec<u8>| {
        let catch_all = random.pick(&[0, 0, 0, 0xc0]);
        let limit = random.pick(&[0, 0, 5, 6, 7, 15]);
        let keep_existing = random.pick(&[0, 0, 0, 0, 0, 0x38]);
        let b = catch_all | keep_existing | limit;
        let leases = random.pick(&[0, 4, 4]) | random.below(4);
        let cue = random.pick(&[0, 0, 64, 128]);
        let a = random.byte() & !3 | random.below(keys);
        let more = if times { random.byte() } else { 0 };
        script.extend([ATTACH_MORE, a, b, leases | cue, more]);
    };
    for _ in 0..2 + random.below(4) {
        join(random, &mut script);
    }
    script.push(RUN);
    for _ in 0..8 + random.below(40) {
        match random.below(24) {
            0..=7 => script.extend([ITEMS, random.below(keys) + 6 * random.below(3)]),
            8..=10 => script.extend([CUE, random.below(6), random.pick(&[PARK, OPEN, ALLOW])]),
            11 => script.extend([CUE, random.below(6), YIELD]),
            20 => script.extend([CUE, random.below(6), random.byte()]),
            12 => join(random, &mut script),
            13 => script.extend([LEASE, random.byte()]),
            14 if random.below(3) == 0 => {
                script.extend([random.pick(&[DETACH, EVICT]), random.below(keys)]);
            }
            15 if times => script.extend([TICK, random.pick(&[POLL, RUN])]),
            16 => script.extend([STREAMS, random.byte()]),
            17 => script.extend([INSIDE, random.byte(), CUE, random.below(6), random.byte()]),
            18 | 19 => script.push(POLL),
            _ => script.push(RUN),
        }
    }
    script
}

/// Plays one script for each seed. The seeds are the numbers below `default`, or those that the
/// environment names, as in `SCHEDULES=100000` or `SCHEDULES=100000..200000`.
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
    let number = |digits: &str| digits.parse().expect("SCHEDULES must be a number or a range");
    match schedules.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => 0..number(&schedules),
    }
}

/// Asserts that the scripts reached each of `situations`, and that the model rarely gave up.
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

#[test]
fn schedules_of_time_keep_the_contract() {
    let summary = play("timed", TIMED, timed);
    let situations = [
        "blocked",
        "detached: idle",
        "detached: stalled",
        "discarded: evicted",
        "flush pending",
        "key attached",
        "key detached",
        "order: tick",
    ];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_items_that_supersede_others_keep_the_contract() {
    let summary = play("latest", LATEST, latest);
    let situations = [
        "copied",
        "discarded: conflated",
        "discarded: overflowed",
        "not superseded",
        "ready yields",
    ];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_sinks_on_demand_keep_the_contract() {
    let summary = play("on demand", ON_DEMAND_SCHEDULES, on_demand);
    let situations = [
        "attached on demand",
        "detached: idle",
        "detached: limited",
        "detached: replaced",
        "detached: stalled",
        "lease ended",
        "nothing on demand",
        "unmatched",
    ];
    assert_seen(&summary, &situations);
}

#[test]
fn schedules_of_shared_items_keep_the_contract() {
    let summary = play("shared", SHARED, shared);
    let situations = [
        "blocked",
        "detached: evicted",
        "detached: failed",
        "detached: stalled",
        "discarded: not admitted",
        "discarded: overflowed",
        "ready yields",
    ];
    assert_seen(&summary, &situations);
}

/// Returns the number of schedules of one kind in a debug or a release build. A release build is
/// ten times as fast.
const fn schedules(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

const SWARMS: u64 = schedules(5_000, 20_000);
const UNIFORMS: u64 = schedules(5_000, 20_000);
const CROWDS: u64 = schedules(600, 4_000);
const BUSY: u64 = schedules(800, 6_000);
const SHORT: u64 = schedules(2_000, 20_000);
const RECONNECTS: u64 = schedules(5_000, 20_000);
const TIMED: u64 = schedules(2_000, 20_000);
const SHARED: u64 = schedules(2_000, 20_000);
const LATEST: u64 = schedules(2_000, 20_000);
const ON_DEMAND_SCHEDULES: u64 = schedules(2_000, 20_000);

// Regression tests, with scripts that `model::shrink` has shortened.

#[test]
fn a_sink_that_is_closing_is_not_flushed_when_its_lease_is_detached() {
    model::run(&[
        7, 0, 7, 7, 1, 0, 4, 17, 0, 10, 0, 1, 29, 17, 0, 12, 12, 1, 29, 17, 0, 27, 29, 15, 4, 29,
    ]);
}

#[test]
fn a_lease_that_ends_while_the_attachment_is_announced_ends_after_the_order() {
    model::run(&[
        198, 222, 27, 200, 35, 111, 11, 59, 183, 219, 222, 117, 72, 187, 248, 37, 51, 88, 121, 187,
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
    // A wake in the turn in which the old sink was dropped.
    model::run(&[
        5, 93, 136, 80, 202, 25, 178, 19, 32, 12, 135, 36, 84, 39, 62, 104, 188, 12, 152, 212, 75,
        126, 221, 205, 112, 6, 203, 25, 115, 114, 143, 17, 102, 64, 137, 229, 206, 126, 197, 65,
        28,
    ]);
    // A wake that is still there after `poll_ready` has returned `Ready`.
    model::run(&[
        254, 87, 15, 7, 36, 0, 17, 0, 132, 17, 0, 218, 15, 157, 14, 27, 12, 0, 13, 0, 7, 36, 90,
        145, 0, 6, 27,
    ]);
    // A flush after the order was read and before the sink was attached.
    model::run(&[
        214, 85, 1, 7, 76, 0, 135, 7, 28, 85, 70, 0, 0, 15, 205, 0, 1, 23, 3, 15, 202, 6, 0, 2, 23,
        27, 3, 6, 23, 2, 15, 198, 29,
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
        153, 134, 2, 7, 228, 0, 144, 7, 24, 0, 76, 7, 24, 0, 76, 7, 24, 0, 224, 7, 228, 0, 144, 7,
        24, 85, 224, 7, 248, 0, 224, 29, 17, 5, 164, 0, 6, 27, 0, 0, 27, 0, 0, 27, 15, 136, 0, 6,
        27, 3, 4, 0, 0, 27, 14, 131, 0, 6, 27, 0, 6, 27, 0, 6, 27,
    ]);
}

#[test]
fn a_sink_that_reaches_its_limit_with_the_item_before_finish_hands_on_its_queue() {
    model::run(&[
        255, 255, 255, 255, 255, 255, 255, 0, 211, 31, 201, 120, 7, 37, 0, 64, 0, 25, 0, 245, 245,
        245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245, 245,
        245, 245, 245, 245, 245, 231, 0, 0, 0, 201, 120, 7, 37, 0, 64, 0, 0, 211, 31,
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
