//! Why the lock was not obtained, as one line, in three cases: busy, gave up waiting, still
//! waiting. All three describe the holder in the same words. The caller decides when and where to
//! print the line.

use super::columns::{Width, fitted, width};
use super::live::Said;
use super::owner::{because, left_behind, who};
use super::time::{about, local, millis, span};
use crate::clock::Moment;
use crate::lock::{Key, Mode, Owner};
use crate::rules::{Blocker, Done, Holder, Pause, State, Superseded, Waiting};
use crate::shell::{cited, word};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct LockRequest {
    /// The keys in the order given; at least one.
    pub keys: Vec<Key>,
    /// The store's name without its secret.
    pub store: String,
    /// How the lock was to be shared.
    pub mode: Mode,
}

/// How the lock was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    Once,
    /// Once, by a process that runs under the lock itself.
    Inside,
    /// For this long, in the queue.
    Waited(Duration),
}

/// The message for busy. `so` says what it means for the command, if there is one.
pub fn busy(request: &LockRequest, blocker: &Blocker, tried: Tried, so: &str) -> String {
    let (verdict, next) = match tried {
        _ if blocker.queue_full.is_some() => ("is busy".into(), "try later"),
        // A run with --min-hold cannot use --wait.
        Tried::Once if blocker.state == State::Cooling => ("is busy".into(), "try later"),
        Tried::Once => ("is busy".into(), "-w waits for it"),
        Tried::Inside => ("is busy".into(), "this process itself runs under it"),
        Tried::Waited(bound) => (format!("was busy for all of --wait ({})", span(bound)), "try later"),
    };
    format!("{} {verdict}: {}{so}; {next}", request.at(blocker.at), reason(blocker, request.mode))
}

/// The message of a run whose work another run had done.
pub fn done(request: &LockRequest, done: &Done) -> String {
    let owner = &done.success.owner;
    let now = done.success.since.saturating_add(millis(done.ago));
    let (began, ended) = (local(done.success.since, now), local(done.success.ended, now));
    let due = match done.due.is_zero() {
        true => "for a run that arrives now".into(),
        false => format!("in {}", span(done.due)),
    };
    format!(
        "{} is done: {} ran {} from {began} to {ended}, with status 0; the command did not run; it is due again {due} \
         (--once-per), or after {}",
        request.at(done.at),
        who(owner),
        quoted_command(owner),
        cited(&format!("dlock forget {}", word(request.key_of(done.at).as_str())))
    )
}

/// The message of a run that a newer run replaced.
pub fn superseded(request: &LockRequest, superseded: &Superseded) -> String {
    let by = match &superseded.by {
        unknown if unknown.host.is_empty() => "a newer run".into(),
        owner => format!("{}, which wants to run {}", who(owner), quoted_command(owner)),
    };
    format!("superseded by {by} under {} (--replace); the command did not run", request.at(superseded.at))
}

/// The line about waiting for `waited` so far, in a short form if the terminal is narrow.
fn waiting(request: &LockRequest, waiting: &Waiting, waited: Duration, room: Width) -> String {
    let blocker = &waiting.blocker;
    let place = waiting.ahead.saturating_add(1);
    let since = if waited.as_secs() == 0 { String::new() } else { format!(" for {}", span(waited)) };
    let turn = waiting.turn.map(|turn| format!(", its turn in about {}", about(turn))).unwrap_or_default();
    let (lock, why) = (request.at(blocker.at), reason(blocker, request.mode));
    let whole = format!("waiting{since} for {lock}, place {place} in the queue{turn}: {why}");
    match room {
        Width::Columns(columns) if width(&whole) > columns => {
            // What changes comes first, so that it is seen if the end is cut.
            let (key, waited) = (request.key_of(blocker.at), span(Duration::from_secs(waited.as_secs())));
            let reason = short_reason(blocker, request.mode);
            let brief = format!("waiting {waited} for {key}, place {place}: {reason}");
            let running = blocker.holder.as_ref().filter(|_| blocker.state == State::Held);
            match running.filter(|_| width(&brief) < columns) {
                Some(Holder { owner, .. }) => {
                    fitted(&format!("{brief}, running {}{}", quoted_command(owner), because(owner)), columns)
                }
                None => brief,
            }
        }
        _ => whole,
    }
}

/// Why a request for this mode is not granted, in a short form.
fn short_reason(blocker: &Blocker, requested: Mode) -> String {
    match &blocker.holder {
        Some(holder) if blocker.state == State::Held => held_briefly(holder, blocker.others),
        _ => reason(blocker, requested),
    }
}

/// The holder and the number of others, for a line that may be cut.
pub fn held_briefly(holder: &Holder, others: u64) -> String {
    let others = if others == 0 { String::new() } else { format!(" + {others}") };
    let Owner { user, host, .. } = &holder.owner;
    let (held, lease) = (span(holder.held), span(holder.lease));
    format!("held for {held} by {user}@{host}{others}, lease {lease}")
}

/// Returns a function that makes the line about waiting, for a wait that began at `since`.
pub fn line(request: LockRequest, answer: Waiting, since: Moment) -> impl Fn(Width) -> Said {
    let answered = Moment::now();
    move |room| {
        let now = Moment::now();
        let aged = aged(&answer, now.since(answered));
        Said {
            text: waiting(&request, &aged, now.since(since), room),
            key: request.key_of(aged.blocker.at).to_string(),
            holder: aged.blocker.holder,
            ahead: Some(aged.ahead),
        }
    }
}

/// The same answer as it would be `age` later if nothing has changed.
fn aged(waiting: &Waiting, age: Duration) -> Waiting {
    let mut waiting = waiting.clone();
    waiting.turn = waiting.turn.map(|turn| turn.saturating_sub(age));
    let blocker = &mut waiting.blocker;
    blocker.left = blocker.left.map(|left| left.saturating_sub(age));
    if let Some(holder) = &mut blocker.holder {
        holder.held = holder.held.saturating_add(age);
        holder.lease = holder.lease.saturating_sub(age);
    }
    waiting
}

impl LockRequest {
    /// The key at this position in order of name.
    pub fn key_of(&self, at: usize) -> &Key {
        let mut in_order: Vec<&Key> = self.keys.iter().collect();
        in_order.sort_unstable();
        in_order.get(at).copied().unwrap_or(&self.keys[0])
    }

    /// The key at this position, its store, and the other keys of the request.
    pub fn at(&self, at: usize) -> String {
        let key = self.key_of(at);
        let others: Vec<Key> = self.keys.iter().filter(|other| *other != key).cloned().collect();
        let together = match others[..] {
            [] => String::new(),
            _ => format!(" (wanted together with {})", listed(&others)),
        };
        format!("{key} in {}{together}", self.store)
    }
}

/// A list of keys; of many, the first ones and a count.
pub fn listed(keys: &[Key]) -> String {
    const NAMED: usize = 3;
    match keys {
        [] => String::new(),
        [key] => key.to_string(),
        [keys @ .., last] if keys.len() < NAMED => format!("{} and {last}", joined(keys)),
        keys => format!("{} and {} more", joined(&keys[..NAMED]), keys.len() - NAMED),
    }
}

fn joined(keys: &[Key]) -> String {
    keys.iter().map(Key::as_str).collect::<Vec<_>>().join(", ")
}

/// Why a request for this mode is not granted, as a clause.
pub fn reason(blocker: &Blocker, requested: Mode) -> String {
    if let Some(waiters) = blocker.queue_full {
        let rest = Blocker { queue_full: None, ..blocker.clone() };
        return format!("the queue is full: {} wait; {}", grouped(waiters), reason(&rest, requested));
    }
    match &blocker.paused {
        Some(Pause { by, .. }) if blocker.state == State::Paused => {
            let left = blocker.left.map(span).unwrap_or_default();
            format!("paused by {}{}, for {left} more", who(by), because(by))
        }
        Some(Pause { by, .. }) => {
            format!("{}; also paused by {}{}", blocker_text(blocker, requested), who(by), because(by))
        }
        None => blocker_text(blocker, requested),
    }
}

/// A number with a comma before each three digits.
fn grouped(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

fn blocker_text(blocker: &Blocker, requested: Mode) -> String {
    let left = blocker.left.map(|left| format!(", for {} at most", span(left))).unwrap_or_default();
    match (blocker.state, &blocker.holder) {
        (State::Held, Some(holder)) if holder.confirmed => held(holder, blocker, requested),
        (State::Held, Some(Holder { owner, .. })) => {
            let (who, others) = (who(owner), and_others(blocker.others, "and"));
            let (what, conflict) = (quoted_command(owner), mode_conflict(blocker, requested));
            format!("it was just granted to {who}{others}, earlier in the queue ({what}){conflict}")
        }
        (State::Held, None) if blocker.mode.is_some() => "others hold it".into(),
        (State::Held, None) => match blocker.left {
            Some(left) => format!("a program other than dlock holds it, for {} more", span(left)),
            None => "a program other than dlock holds it and it never expires; look at that key in the store"
                .into(),
        },
        (State::Cooling, _) => format!("the last run is over and its --min-hold keeps the lock{left}"),
        (State::Revoked, holder) => {
            let from = |Holder { owner, .. }: &Holder| {
                format!(" from {}{}", who(owner), and_others(blocker.others, "and"))
            };
            let from = holder.as_ref().map(from).unwrap_or_default();
            format!("an operator took it away{from}; the old job may still run{left}")
        }
        (State::Free | State::Paused, _) => earlier(blocker),
    }
}

/// Names the waiter that is already in the queue, if its record is known.
fn earlier(blocker: &Blocker) -> String {
    match &blocker.before {
        Some(first) => format!("{} already waits for it ({})", who(first), quoted_command(first)),
        None => "others are earlier in the queue".into(),
    }
}

/// The holders, as a clause: the oldest in full, and the number of others.
fn held(holder: &Holder, blocker: &Blocker, requested: Mode) -> String {
    let now = holder.since.saturating_add(millis(holder.held));
    let end = now.saturating_add(millis(holder.lease));
    let taken = blocker.others.saturating_add(1);
    let how = match blocker.mode {
        None => "held by".into(),
        Some(Mode::Exclusive) if requested == Mode::Exclusive => "held by".into(),
        Some(Mode::Exclusive) => "held exclusive by".into(),
        Some(Mode::Shared) => "held shared by".into(),
        Some(Mode::Slots(1)) => "its one slot is held by".into(),
        Some(Mode::Slots(slots)) if taken >= u64::from(slots) => {
            format!("all its {slots} slots are held, one by")
        }
        Some(Mode::Slots(slots)) if taken == 1 => format!("1 of its {slots} slots held, by"),
        Some(Mode::Slots(slots)) => format!("{taken} of its {slots} slots held, one by"),
    };
    let others = match blocker.mode {
        // `how` has the number already.
        Some(Mode::Slots(_)) => String::new(),
        _ => and_others(blocker.others, ", and by"),
    };
    let Holder { owner, since, held, lease, .. } = holder;
    let (who, what, rest, why) = (who(owner), quoted_command(owner), left_behind(owner), because(owner));
    let (since, held, end, lease) = (local(*since, now), span(*held), local(end, now), span(*lease));
    let (to_stop, conflict) = (asked_to_stop(holder), mode_conflict(blocker, requested));
    format!(
        "{how} {who} since {since} ({held} ago), running {what}{rest}{why}, lease good until {end} ({lease} more){to_stop}{others}{conflict}"
    )
}

/// Who asked a holder to end, as a clause.
pub fn asked_to_stop(holder: &Holder) -> String {
    match &holder.asked {
        Some(by) if holder.superseded => format!(", asked to stop by {}, a newer run (--replace)", who(by)),
        Some(by) => format!(", asked to stop by {}", who(by)),
        None => String::new(),
    }
}

/// How many other holders there are, as a clause that begins with `and`.
pub fn and_others(others: u64, and: &str) -> String {
    let space = if and.starts_with(',') { "" } else { " " };
    match others {
        0 => String::new(),
        1 => format!("{space}{and} one other"),
        others => format!("{space}{and} {others} others"),
    }
}

/// Why a request for this mode cannot join the holders.
fn mode_conflict(blocker: &Blocker, requested: Mode) -> String {
    match blocker.mode {
        None | Some(Mode::Exclusive) if requested == Mode::Exclusive => String::new(),
        Some(Mode::Slots(slots)) if requested == Mode::Slots(slots) => {
            let taken = blocker.others.saturating_add(1);
            if taken < u64::from(slots) { format!("; {}", earlier(blocker)) } else { String::new() }
        }
        Some(mode) if mode == requested => format!("; {}", earlier(blocker)),
        _ => match requested {
            Mode::Slots(1) => "; 1 slot was asked for".into(),
            Mode::Slots(slots) => format!("; {slots} slots were asked for"),
            mode => format!("; {mode} was asked for"),
        },
    }
}

/// The command, in quotes that show where it ends.
pub fn quoted_command(owner: &Owner) -> String {
    format!("'{}'", owner.command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Fence;

    const NOT_RUN: &str = "; the command did not run";

    fn holder(confirmed: bool) -> Holder {
        Holder {
            owner: Owner {
                host: "web1".into(),
                pid: 4711,
                user: "app".into(),
                command: "report --all".into(),
                ..Owner::default()
            },
            fence: Fence(1),
            since: 1_763_724_000_000,
            held: Duration::from_secs(720),
            waited: Duration::ZERO,
            lease: Duration::from_secs(27),
            slot: None,
            asked: None,
            superseded: false,
            during_pause: false,
            confirmed,
        }
    }

    fn request(keys: &[&str], mode: Mode) -> Result<LockRequest, String> {
        let keys = keys.iter().map(|key| Key::new(key)).collect::<Result<_, _>>()?;
        Ok(LockRequest { keys, store: "redis://h:6379".into(), mode })
    }

    fn blocker(mode: Mode, others: u64) -> Blocker {
        Blocker {
            at: 0,
            state: State::Held,
            mode: Some(mode),
            holder: Some(holder(true)),
            others,
            left: None,
            paused: None,
            before: None,
            queue_full: None,
        }
    }

    #[track_caller]
    fn assert_contains(line: &str, parts: &[&str]) {
        println!("{line}");
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn busy_line_describes_the_holder() -> Result<(), String> {
        let request = request(&["nightly"], Mode::Exclusive)?;
        let blocker = blocker(Mode::Exclusive, 0);
        let parts = ["nightly in redis://h:6379 is busy: held by app@web1 (pid 4711)", "12m ago"];
        let more = ["'report --all'", "27s more); the command did not run", "-w"];
        assert_contains(&busy(&request, &blocker, Tried::Once, NOT_RUN), &[&parts[..], &more].concat());
        let line = busy(&request, &blocker, Tried::Waited(Duration::from_secs(10)), NOT_RUN);
        assert_contains(&line, &["--wait (10s)"]);
        Ok(())
    }

    #[test]
    fn busy_line_says_that_the_queue_is_full() -> Result<(), String> {
        let request = request(&["nightly"], Mode::Exclusive)?;
        let blocker = Blocker { queue_full: Some(1000), ..blocker(Mode::Exclusive, 0) };
        let parts = [
            "nightly in redis://h:6379 is busy: the queue is full: 1,000 wait; held by app@web1 (pid 4711)",
            "; the command did not run; try later",
        ];
        for tried in [Tried::Once, Tried::Waited(Duration::from_secs(10))] {
            assert_contains(&busy(&request, &blocker, tried, NOT_RUN), &parts);
        }
        assert_eq!([7, 1000, 12_345_067].map(grouped), ["7", "1,000", "12,345,067"]);
        Ok(())
    }

    #[test]
    fn busy_line_names_both_modes() -> Result<(), String> {
        use Mode::{Exclusive, Shared, Slots};
        for (held, others, wanted, parts) in [
            (Shared, 0, Exclusive, &["held shared by app@web1", "more); exclusive was asked for;"][..]),
            (
                Shared,
                2,
                Exclusive,
                &["held shared by app@web1", ", and by 2 others; exclusive was asked for"],
            ),
            (Exclusive, 0, Shared, &["held exclusive by app@web1", "; shared was asked for"]),
            (Shared, 0, Shared, &["held shared by app@web1", "; others are earlier in the queue"]),
            (Slots(3), 2, Slots(3), &["all its 3 slots are held, one by app@web1", "more); the command"]),
            (Slots(1), 0, Slots(1), &["its one slot is held by app@web1", "more); the command"]),
            (Slots(3), 0, Slots(5), &["1 of its 3 slots held, by app@web1", "; 5 slots were asked for"]),
            (Slots(3), 1, Slots(3), &["2 of its 3 slots held", "; others are earlier in the queue"]),
            (Slots(3), 1, Exclusive, &["2 of its 3 slots held", "; exclusive was asked for"]),
            (Exclusive, 0, Slots(1), &["held exclusive by app@web1", "; 1 slot was asked for"]),
        ] {
            assert_contains(
                &busy(&request(&["k"], wanted)?, &blocker(held, others), Tried::Once, NOT_RUN),
                parts,
            );
        }
        Ok(())
    }

    #[test]
    fn busy_line_names_the_key_in_the_way() -> Result<(), String> {
        let request = request(&["c", "a", "b"], Mode::Exclusive)?;
        let blocker = Blocker { at: 2, ..blocker(Mode::Exclusive, 0) };
        assert_contains(
            &busy(&request, &blocker, Tried::Once, NOT_RUN),
            &["c in redis://h:6379 (wanted together with a and b) is busy"],
        );
        let keys = ["a", "b", "c", "d", "e"].map(Key::new).into_iter().collect::<Result<Vec<_>, _>>()?;
        let lists: Vec<String> = (1..=5).map(|count| listed(&keys[..count])).collect();
        assert_eq!(lists, ["a", "a and b", "a, b and c", "a, b, c and 1 more", "a, b, c and 2 more"]);
        Ok(())
    }

    #[test]
    fn waiting_line_fits_and_ages() -> Result<(), String> {
        let request = request(&["nightly"], Mode::Exclusive)?;
        let waits = Waiting { ahead: 1, next: Duration::ZERO, blocker: blocker(Mode::Shared, 3), turn: None };
        let turn = Waiting { turn: Some(Duration::from_secs(400)), ..waits.clone() };
        let line = waiting(&request, &turn, Duration::from_secs(95), Width::Endless);
        assert_contains(&line, &["place 2 in the queue, its turn in about 7m:"]);
        let waits = aged(&waits, Duration::from_secs(10));
        let said = |columns| waiting(&request, &waits, Duration::from_secs(95), Width::Columns(columns));
        let parts =
            ["nightly in redis://h", "1m35s", "place 2", "app@web1 (pid 4711)", "12m10s", "17s", "3 others"];
        assert_contains(&said(300), &parts);
        assert_eq!(said(300), waiting(&request, &waits, Duration::from_secs(95), Width::Endless));
        for columns in [100, 80, 50] {
            assert_contains(
                &said(columns),
                &["nightly", "1m35s", "place 2", "app@web1", "+ 3", "12m10s", "17s"],
            );
            assert!(said(columns).chars().count() <= columns.max(80), "{columns}");
        }
        assert_contains(&said(120), &["+ 3", "17s, running"]);
        Ok(())
    }

    #[test]
    fn every_state_has_a_text() -> Result<(), String> {
        for state in [State::Held, State::Free, State::Cooling, State::Revoked] {
            for holder in [None, Some(holder(false))] {
                for left in [None, Some(Duration::from_secs(3))] {
                    let blocker =
                        Blocker { state, holder: holder.clone(), left, ..blocker(Mode::Exclusive, 1) };
                    let request = request(&["k"], Mode::Shared)?;
                    println!("{}", busy(&request, &blocker, Tried::Once, NOT_RUN));
                    let waits = Waiting { ahead: 2, next: Duration::ZERO, blocker, turn: None };
                    for room in [Width::Endless, Width::Columns(40), Width::Columns(1)] {
                        assert_contains(
                            &waiting(&request, &waits, Duration::from_secs(10), room),
                            &["10s", "place 3"],
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
