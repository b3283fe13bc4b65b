//! The random histories: what the clients want, and what happens in which order.

use super::{LOCKS, PEOPLE};
use dlock::exit::Ended;
use dlock::lock::{Fence, Mode};
use dlock::rules::{Missed, Outcome, Patience, Ran, Subject, When};
use proptest::prelude::*;

/// What a client wants, for as long as it has the same token.
#[derive(Debug, Clone)]
pub struct Want {
    /// At least one of the locks.
    pub locks: Vec<usize>,
    pub mode: Mode,
    pub replaces: bool,
    pub not_replaceable: bool,
    pub pause_on_failure: Option<u64>,
    pub during_pause: bool,
}

/// One step of a history. Clients are numbered; each has one token and one wish until it is reborn
/// with others.
#[derive(Debug, Clone)]
pub enum Step {
    Acquire {
        who: usize,
        patience: Patience,
        ttl: u64,
        min_hold: u64,
        once_per: Option<u64>,
        waited: u64,
    },
    Renew {
        who: usize,
        ttl: u64,
    },
    Leave {
        who: usize,
        ran: Ran,
        job: Option<Ended>,
    },
    Revoke {
        lock: usize,
        when: When,
    },
    Reborn {
        who: usize,
        want: Want,
    },
    Pass(u64),
    /// Time passes, and the store is away meanwhile.
    Away(u64),
    Vanish {
        lock: usize,
    },
    Intrude {
        lock: usize,
        ttl: Option<u64>,
    },
    Request {
        lock: usize,
    },
    Forget {
        lock: usize,
    },
    Pause {
        lock: usize,
        lasts: Option<u64>,
    },
    Refuse {
        who: usize,
        lock: usize,
        missed: Option<(Missed, Option<Subject>)>,
    },
}

fn wants() -> impl Strategy<Value = Want> {
    let locks = prop_oneof![4 => Just(vec![0]), 3 => prop::sample::subsequence(vec![0, 1, 2], 1..=LOCKS)];
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        3 => Just(Mode::Slots(2)),
        1 => Just(Mode::Slots(3)),
    ];
    (locks, mode, flags(), pauses()).prop_map(
        |(locks, mode, (replaces, not_replaceable), (pause_on_failure, during_pause))| Want {
            locks,
            mode,
            replaces,
            not_replaceable,
            pause_on_failure,
            during_pause,
        },
    )
}

/// `--pause-on-failure` and `--during-pause`.
pub fn pauses() -> impl Strategy<Value = (Option<u64>, bool)> + Clone {
    let lasts = prop_oneof![3 => Just(None), 1 => (1..90_000u64).prop_map(Some)];
    (lasts, prop_oneof![3 => Just(false), 1 => Just(true)])
}

pub fn flags() -> impl Strategy<Value = (bool, bool)> + Clone {
    let flag = || prop_oneof![2 => Just(false), 1 => Just(true)];
    (flag(), flag())
}

fn rans() -> impl Strategy<Value = Ran> {
    let cut = prop::sample::select(vec![
        Outcome::Crashed,
        Outcome::Expired,
        Outcome::Lost,
        Outcome::Timeout,
        Outcome::Stopped,
        Outcome::Superseded,
    ]);
    prop_oneof![3 => Just(Ran::Yes), 2 => cut.prop_map(Ran::Cut), 1 => Just(Ran::No)]
}

pub fn histories() -> impl Strategy<Value = (Vec<Want>, Vec<Step>)> {
    // In half of the histories all clients want the same, so that a lock of several is really
    // shared.
    let alike = wants().prop_map(|want| vec![want; PEOPLE]);
    (prop_oneof![alike, prop::collection::vec(wants(), PEOPLE)], steps(wants()))
}

pub fn steps(wants: impl Strategy<Value = Want>) -> impl Strategy<Value = Vec<Step>> {
    let (who, lock) = (0..PEOPLE, 0..LOCKS);
    let ttl = prop_oneof![Just(500u64), 500..6000u64, Just(30_000u64)];
    let min_hold = prop_oneof![4 => Just(0u64), 1 => 1..8000u64];
    let patience = prop_oneof![3 => Just(Patience::Queue), 1 => Just(Patience::None)];
    let span = prop_oneof![
        4 => 1..50u64,
        4 => 50..2000u64,
        2 => prop::sample::select(vec![250u64, 500, 1600, 4000, 4999, 5000, 5001, 30_000]),
        1 => prop::sample::select(vec![59_999u64, 60_000, 60_001, 600_000, 600_001, 3_600_000]),
    ];
    let once_per = prop_oneof![3 => Just(None), 1 => (50..9000u64).prop_map(Some), 1 => Just(Some(60_000))];
    let lasts = prop_oneof![Just(None), (1..8000u64).prop_map(Some)];
    let waited = prop_oneof![6 => Just(0u64), 1 => 1..100_000u64];
    let job = prop_oneof![
        Just(None),
        Just(Some(Ended::Code(0))),
        Just(Some(Ended::Code(0))),
        any::<u8>().prop_map(|code| Some(Ended::Code(code))),
        (1..64i32).prop_map(|signal| Some(Ended::Signal(signal))),
    ];
    let kinds = [
        Missed::GaveUp,
        Missed::StillHeld,
        Missed::Failed,
        Missed::TooLong,
        Missed::OtherHour,
        Missed::Between,
    ];
    let subject = prop_oneof![
        4 => (0..2u64).prop_map(|more| Some(Subject::Fence(Fence(1_763_724_242_007_113 + more)))),
        2 => (0..6u64).prop_map(|seconds| Some(Subject::Pause(4_000_000_000_000 + 1000 * seconds))),
        1 => Just(None),
    ];
    let missed = prop::option::weighted(0.9, (prop::sample::select(kinds.to_vec()), subject));
    let step = prop_oneof![
        16 => (who.clone(), patience, ttl.clone(), min_hold, once_per, waited).prop_map(
            |(who, patience, ttl, min_hold, once_per, waited)| {
                Step::Acquire { who, patience, ttl, min_hold, once_per, waited }
            }
        ),
        4 => (who.clone(), ttl).prop_map(|(who, ttl)| Step::Renew { who, ttl }),
        8 => (who.clone(), rans(), job)
            .prop_map(|(who, ran, job)| Step::Leave { who, ran, job }),
        2 => (lock.clone(), prop_oneof![Just(When::Safe), Just(When::Now)])
            .prop_map(|(lock, when)| Step::Revoke { lock, when }),
        4 => (who.clone(), wants).prop_map(|(who, want)| Step::Reborn { who, want }),
        2 => (who.clone(), lock.clone(), missed)
            .prop_map(|(who, lock, missed)| Step::Refuse { who, lock, missed }),
        12 => span.prop_map(Step::Pass),
        2 => prop_oneof![
            lock.clone().prop_map(|lock| Step::Vanish { lock }),
            lock.clone().prop_map(|lock| Step::Request { lock }),
            lock.clone().prop_map(|lock| Step::Forget { lock }),
            (lock.clone(), lasts).prop_map(|(lock, lasts)| Step::Pause { lock, lasts }),
            (lock, prop_oneof![Just(None), (1..3000u64).prop_map(Some)])
                .prop_map(|(lock, ttl)| Step::Intrude { lock, ttl }),
        ],
    ];
    prop::collection::vec(step, 1..60)
}
