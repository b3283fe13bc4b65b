//! The last refusals of a lock: which caller was refused, and why. They answer "why did the job not
//! run?". No decision about the lock depends on them.
//!
//! A scheduled run (`--once-per`) that ends without a success may have to be announced, also with
//! `--quiet`. Many machines are refused for the same reason, and one of them announces it: the step
//! that records the refusal keeps a [`Mark`] of that, and answers whether the caller is to announce it.

use super::answer::{Blocker, Cause, Done, Holder, State, Superseded};
use super::time::{Time, millis};
use crate::lock::{By, Fence, Owner, Period, shorten};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many of the last refusals of a lock are recorded: as many as of its ends.
pub const REFUSALS_KEPT: usize = super::LOG_KEPT;
/// The greatest number of bytes of a command or a reason in a refusal.
const REFUSAL_TEXT_MAX: usize = 200;
/// How often runs that give up or are refused because of the same hold or pause are announced: once an
/// hour, of a line that runs each hour, too, for one hour is seldom exactly as long as the next.
pub const ANNOUNCED_AGAIN: Duration = Duration::from_secs(50 * 60);
/// Pauses that began less than this apart are one, in milliseconds: masters of a quorum record the
/// same pause by their own clocks.
pub const SAME_PAUSE: u64 = 2000;

/// A request for a lock that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// When, by the store's clock, in milliseconds since 1970. The store sets it.
    #[serde(default)]
    pub at: u64,
    pub owner: Owner,
    pub why: Why,
    /// The owner of the hold, the success, the pause or the newer run; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Owner>,
    /// How long it had waited, in milliseconds.
    #[serde(default)]
    pub waited: u64,
    /// What may have to be announced.
    #[serde(skip)]
    pub notice: Option<Notice>,
}

/// Why a scheduled run that ended without a success is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missed {
    /// It gave up waiting.
    GaveUp,
    /// An earlier run still has the lock, longer than a success would count.
    StillHeld,
    /// The lock is paused because an earlier run failed. Also of a run without `--once-per`.
    Failed,
    /// It was skipped almost a whole DUR after the success: DUR seems to be as long as the period.
    TooLong,
    /// It was skipped at another hour than those of its timetable.
    OtherHour,
    /// It was skipped in the middle of a DUR, which therefore is a limit, and not the period. Not
    /// announced: it keeps [`Missed::TooLong`] from being announced.
    Between,
}

impl Missed {
    /// Whether it is announced at all.
    pub fn is_announced(self) -> bool {
        self != Self::Between
    }
}

/// What may have to be announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub kind: Missed,
    /// Because of what it was refused, if known.
    pub subject: Option<Subject>,
    /// Names the run, in case that it asks again: the SHA-1 of its token, which is a secret. The lease
    /// sets it.
    pub by: String,
}

/// Because of what the run was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The hold or the success with this fence.
    Fence(Fence),
    /// The pause that began then, in milliseconds since 1970.
    Pause(u64),
}

impl Subject {
    /// Whether both are the same.
    pub fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Fence(one), Self::Fence(other)) => one == other,
            (Self::Pause(one), Self::Pause(other)) => one.abs_diff(other) < SAME_PAUSE,
            _ => false,
        }
    }
}

/// The last announcement of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub subject: Subject,
    /// When, by the store's clock, in milliseconds since 1970.
    pub at: u64,
    /// [`Notice::by`] of the run that announced it.
    pub by: String,
}

impl Notice {
    /// Of a run that did not get the lock. `once_per`: the PERIOD of a scheduled run; `waited`: how
    /// long the run had asked, if it gave up.
    pub fn busy(blocker: &Blocker, once_per: Option<Period>, waited: Option<Duration>) -> Option<Self> {
        let Blocker { state, holder, paused, .. } = blocker;
        let (holder, paused) = (holder.as_ref(), paused.as_ref());
        let is_late = |holder: &Holder, period: Period| {
            let is_run = *state == State::Held && holder.owner.by == By::Run && holder.confirmed;
            is_run && holder.held + holder.waited > period.counts()
        };
        let kind = match (once_per, waited) {
            (Some(_), Some(_)) => Missed::GaveUp,
            (Some(period), None) if holder.is_some_and(|holder| is_late(holder, period)) => Missed::StillHeld,
            _ if paused.is_some_and(|pause| pause.cause == Cause::Failure) => Missed::Failed,
            _ => return None,
        };
        // Also of a lock that is held: other slots may still run.
        let is_shut = *state == State::Paused || kind == Missed::Failed;
        let paused = paused.filter(|_| is_shut).map(|pause| Subject::Pause(pause.since));
        Some(Self::new(kind, paused.or(holder.map(|holder| Subject::Fence(holder.fence)))))
    }

    /// Of a scheduled run that was skipped.
    pub fn done(done: &Done, period: Period) -> Option<Self> {
        let Done { age, success, .. } = done;
        let (counts, whole) = (period.counts(), period.whole());
        let kind = match period {
            Period::Minute => return None,
            Period::Hour | Period::Day | Period::Week if (whole / 6..counts).contains(age) => {
                Missed::OtherHour
            }
            Period::Span(span) if (span / 4..=span / 4 * 3).contains(age) => Missed::Between,
            Period::Span(span) if (span / 5 * 4..span).contains(age) => Missed::TooLong,
            _ => return None,
        };
        Some(Self::new(kind, Some(Subject::Fence(success.fence))))
    }

    fn new(kind: Missed, subject: Option<Subject>) -> Self {
        Self { kind, subject, by: String::new() }
    }

    /// Whether the caller is to announce it, which is then recorded among the marks. A run that asks
    /// again gets the same answer. If the subject is unknown, each run announces it.
    pub(super) fn announce(&self, now: Time, marks: &mut BTreeMap<Missed, Mark>) -> bool {
        let is_announced = self.kind.is_announced();
        let Some(subject) = self.subject else { return is_announced };
        let about = |kind| marks.get(&kind).filter(|mark| mark.subject.is(subject));
        let was_announced = about(self.kind).is_some_and(|mark| {
            let is_recent = mark.at.abs_diff(now.millis()) < millis(ANNOUNCED_AGAIN);
            let once = !matches!(self.kind, Missed::GaveUp | Missed::StillHeld);
            mark.by != self.by && (once || is_recent)
        });
        if was_announced || self.kind == Missed::TooLong && about(Missed::Between).is_some() {
            return false;
        }
        marks.insert(self.kind, Mark { subject, at: now.millis(), by: self.by.clone() });
        is_announced
    }
}

/// Why a caller did not get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Another holder had it.
    Busy,
    /// The job is done already (`--once-per`).
    Done,
    /// An operator has paused it.
    Paused,
    /// A newer run replaced it (`--replace`).
    Superseded,
    /// Its time to wait was over.
    GaveUp,
    /// Its dlock ended while it waited: by a signal, or by an error.
    Interrupted,
    /// The queue was full.
    QueueFull,
    /// Nobody was in the way but those who waited already.
    Behind,
}

impl Why {
    /// The word for it in records and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Done => "done",
            Self::Paused => "paused",
            Self::Superseded => "superseded",
            Self::GaveUp => "gave-up",
            Self::Interrupted => "interrupted",
            Self::QueueFull => "queue-full",
            Self::Behind => "behind",
        }
    }
}

impl Refusal {
    fn new(owner: &Owner, why: Why, by: Option<&Owner>, waited: Duration) -> Self {
        let short = |owner: &Owner| {
            let mut owner = Owner { ttl: None, once_per: None, ..owner.clone() };
            shorten(&mut owner.command, REFUSAL_TEXT_MAX);
            owner.reason.iter_mut().for_each(|reason| shorten(reason, REFUSAL_TEXT_MAX));
            owner
        };
        Self { at: 0, owner: short(owner), why, by: by.map(short), waited: millis(waited), notice: None }
    }

    /// The same, which may have to be announced.
    pub fn with(self, notice: Option<Notice>) -> Self {
        Self { notice, ..self }
    }

    /// The lock was busy. With `waited`, the caller gave up after that time.
    pub fn busy(owner: &Owner, blocker: &Blocker, waited: Option<Duration>) -> Self {
        let is_first_try = waited.is_none() && blocker.queue_full.is_none();
        let (why, by) = match (&blocker.paused, &blocker.holder) {
            (Some(pause), _) if blocker.state == State::Paused && blocker.queue_full.is_none() => {
                (Why::Paused, Some(&pause.by))
            }
            _ if is_first_try && blocker.before.is_some() => (Why::Behind, blocker.before.as_ref()),
            (_, holder) => {
                let why = match (blocker.queue_full, waited) {
                    (Some(_), _) => Why::QueueFull,
                    (None, Some(_)) => Why::GaveUp,
                    (None, None) => Why::Busy,
                };
                (why, holder.as_ref().map(|holder| &holder.owner))
            }
        };
        Self::new(owner, why, by, waited.unwrap_or_default())
    }

    /// Its dlock ended while it waited. `by` has the lock.
    pub fn interrupted(owner: &Owner, by: Option<&Owner>, waited: Duration) -> Self {
        Self::new(owner, Why::Interrupted, by, waited)
    }

    /// The job was done already.
    pub fn done(owner: &Owner, done: &Done, waited: Duration) -> Self {
        Self::new(owner, Why::Done, Some(&done.success.owner), waited)
    }

    /// A newer run replaced the caller.
    pub fn superseded(owner: &Owner, superseded: &Superseded, waited: Duration) -> Self {
        Self::new(owner, Why::Superseded, Some(&superseded.by), waited)
    }
}
