//! What a scheduled run (`--once-per`) that ended without a success announces, also with `--quiet`: one
//! line, by one run for all machines.

use super::busy::{LockRequest, quoted_command, reason};
use super::owner::{because, who};
use super::time::{local, millis, span};
use crate::lock::{By, Period};
use crate::rules::{Blocker, Cause, Done, Missed, Notice, Pause, Refusal, State};
use crate::shell::{cited, word};
use serde::Serialize;
use std::time::Duration;

/// The fields of the message, for programs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Fields {
    why: Missed,
    /// How long it had waited.
    waited_ms: Option<u64>,
    /// How much earlier the run arrived that has the lock, or that succeeded.
    age_ms: Option<u64>,
}

impl Fields {
    pub fn busy(refusal: &Refusal, blocker: &Blocker) -> Option<Self> {
        let why = refusal.notice.as_ref()?.kind;
        let held = blocker.holder.as_ref().map(|holder| millis(holder.held + holder.waited));
        let age_ms = held.map(|held| held.saturating_sub(refusal.waited));
        Some(Self { why, waited_ms: Some(refusal.waited).filter(|_| why == Missed::GaveUp), age_ms })
    }

    pub fn done(notice: &Notice, done: &Done) -> Self {
        Self { why: notice.kind, waited_ms: None, age_ms: Some(millis(done.age)) }
    }
}

/// The run gave up, or was refused because another one has the lock for long.
pub fn busy(request: &LockRequest, blocker: &Blocker, refusal: &Refusal) -> String {
    let (place, key) = (request.at(blocker.at), request.key_of(blocker.at).as_str());
    let command = |name: &str| cited(&format!("dlock {name} {}", word(key)));
    let has_failed = matches!(&refusal.notice, Some(Notice { kind: Missed::Failed, .. }));
    let what = match &refusal.notice {
        Some(Notice { kind: Missed::GaveUp, .. }) if blocker.queue_full.is_none() => {
            format!(": waited {} and gave up", span(Duration::from_millis(refusal.waited)))
        }
        _ if has_failed => " is paused because a run failed".into(),
        _ => " is busy".into(),
    };
    let is_held = blocker.state == State::Held && !has_failed;
    let (because_of, next) = match (&blocker.holder, &blocker.paused) {
        (Some(holder), _) if is_held && blocker.queue_full.is_none() => {
            let owner = &holder.owner;
            let now = holder.since.saturating_add(millis(holder.held));
            let has = if owner.by == By::Run { "has been running" } else { "has held it for" };
            let (who, what, why) = (who(owner), quoted_command(owner), because(owner));
            (
                format!("; {who} {has} {what}{why} since {}", local(holder.since, now)),
                format!("{} stops it, --max-run bounds such a run", command("release")),
            )
        }
        (_, Some(Pause { by, since, until, cause })) if has_failed || blocker.state == State::Paused => {
            let (who, because, from) = (who(by), because(by), local(*since, *until));
            let paused = match cause {
                Cause::Operator => format!("; {who} has paused it{because} since {from}"),
                Cause::Failure => {
                    let until = local(*until, *since);
                    format!("; the run of {who}{because} has paused it since {from}, until {until}")
                }
            };
            (paused, format!("{} ends the pause", command("resume")))
        }
        _ => (format!(": {}", reason(blocker, request.mode)), format!("{} says more", command("status"))),
    };
    format!("{place}{what}{because_of}; this run did not happen; {next}")
}

/// The run was skipped, and probably should not have been.
pub fn done(request: &LockRequest, done: &Done, notice: &Notice, period: Period) -> String {
    let skipped = format!("{}: skipped: a run succeeded {} ago", request.at(done.at), span(done.age));
    if notice.kind == Missed::TooLong {
        let (period, shorter) = (span(period.whole()), shorter(period.whole()));
        return format!(
            "{skipped}; --once-per {period} is as long as the period, write --once-per {shorter}"
        );
    }
    let forget = cited(&format!("dlock forget {}", word(request.key_of(done.at).as_str())));
    format!("{skipped}, at another hour than usual; {forget} lets it run")
}

/// What to write in place of a DUR that is as long as the period: the word for that, or half of it.
fn shorter(dur: Duration) -> String {
    let is_near = |whole: Duration| (whole / 5 * 4..=whole / 4 * 5).contains(&dur);
    let word = Period::WORDS.into_iter().find(|(_, period)| is_near(period.whole()));
    word.map_or_else(|| span(dur / 2), |(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_for_a_dur() {
        for (seconds, word) in
            [(59, "minute"), (3_599, "hour"), (86_399, "day"), (604_000, "week"), (21_600, "3h")]
        {
            assert_eq!(shorter(Duration::from_secs(seconds)), word);
        }
    }
}
