//! Why is the lock not to be had? One line for the three moments when that is said: busy, gave up waiting, waiting.
//! The words for what stands in the way are the same in all three.

use super::time::{local, span};
use crate::law::{Blocker, Holder, State, Waiting};
use crate::lock::Owner;
use std::time::Duration;

/// How the lock was tried for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// Once, without waiting.
    Once,
    /// For this long, in the queue.
    Waited(Duration),
}

/// The one line of a run that did not get the lock. `store` is the store's name without its secret.
pub fn busy(key: &str, store: &str, blocker: &Blocker, tried: Tried) -> String {
    let (verdict, next) = match tried {
        Tried::Once => ("is busy".into(), "-w waits for it"),
        Tried::Waited(bound) => (format!("was busy for the {} of --wait", span(bound)), "try later"),
    };
    format!("{key} in {store} {verdict}: {}; the command did not run; {next}", reason(blocker))
}

/// A line for one who waits, and has waited for `waited`.
pub fn waiting(key: &str, store: &str, waiting: &Waiting, waited: Duration) -> String {
    let ahead = match waiting.ahead {
        0 => String::new(),
        1 => ", one waiter ahead".into(),
        n => format!(", {n} waiters ahead"),
    };
    let since = if waited.as_secs() == 0 { String::new() } else { format!(" for {}", span(waited)) };
    format!("waiting{since} for {key} in {store}{ahead}: {}", reason(&waiting.blocker))
}

/// What stands in the way, as a clause.
pub fn reason(blocker: &Blocker) -> String {
    let left = blocker.left.map(|left| format!(", for {} at most", span(left))).unwrap_or_default();
    match (blocker.state, &blocker.holder) {
        (State::Held, Some(holder)) if holder.confirmed => held(holder),
        (State::Held, Some(holder)) => format!(
            "it was just given to {}, who waited before ({})",
            who(&holder.owner),
            what(&holder.owner)
        ),
        (State::Held, None) => match blocker.left {
            Some(left) => format!("something that is not dlock holds it, for {} more", span(left)),
            None => "something that is not dlock holds it, without an end; \
                     look at that key in the store"
                .into(),
        },
        (State::Cooling, _) => format!("the last run is over and its --min-hold keeps the lock{left}"),
        (State::Revoked, holder) => format!(
            "an operator took it away{}, whose job may still run{left}",
            holder.as_ref().map(|holder| format!(" from {}", who(&holder.owner))).unwrap_or_default()
        ),
        (State::Free, Some(holder)) => format!("{} waited before", who(&holder.owner)),
        (State::Free, None) => "others waited before".into(),
    }
}

/// A hold, as a clause.
fn held(holder: &Holder) -> String {
    let now = holder.since.saturating_add(super::time::millis(holder.held));
    let end = now.saturating_add(super::time::millis(holder.lease));
    let because = holder.owner.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!(
        "held by {} since {} ({} ago), running {}{because}, lease good until {} ({} more)",
        who(&holder.owner),
        local(holder.since, now),
        span(holder.held),
        what(&holder.owner),
        local(end, now),
        span(holder.lease),
    )
}

/// `user@host (pid 12)`.
pub fn who(owner: &Owner) -> String {
    format!("{}@{} (pid {})", owner.user, owner.host, owner.pid)
}

/// The command, in quotes that show where it ends.
fn what(owner: &Owner) -> String {
    format!("'{}'", owner.command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Fence, Mode};

    fn holder(confirmed: bool) -> Holder {
        Holder {
            owner: Owner {
                host: "web1".into(),
                pid: 4711,
                user: "app".into(),
                command: "report --all".into(),
                reason: None,
            },
            fence: Fence(1),
            since: 1_763_724_000_000,
            held: Duration::from_secs(720),
            lease: Duration::from_secs(27),
            slot: None,
            asked: None,
            confirmed,
        }
    }

    #[test]
    fn a_busy_line_says_who_since_when_what_and_until_when() {
        let blocker = Blocker {
            at: 0,
            state: State::Held,
            mode: Some(Mode::Exclusive),
            holder: Some(holder(true)),
            others: 0,
            left: None,
        };
        let line = busy("nightly", "redis://h:6379", &blocker, Tried::Once);
        for part in [
            "nightly in redis://h:6379",
            "app@web1 (pid 4711)",
            "12m ago",
            "'report --all'",
            "27s more",
            "did not run",
            "-w",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let line = busy("nightly", "redis://h:6379", &blocker, Tried::Waited(Duration::from_secs(10)));
        assert!(line.contains("10s of --wait"), "{line}");
    }

    #[test]
    fn every_state_has_words() {
        for state in [State::Held, State::Free, State::Cooling, State::Revoked] {
            for holder in [None, Some(holder(false))] {
                for left in [None, Some(Duration::from_secs(3))] {
                    let mode = Some(Mode::Exclusive);
                    let blocker = Blocker { at: 0, state, mode, holder: holder.clone(), others: 0, left };
                    println!("{}", busy("k", "file:/d", &blocker, Tried::Once));
                    let waits = Waiting { ahead: 2, next: Duration::ZERO, blocker };
                    assert!(
                        waiting("k", "file:/d", &waits, Duration::from_secs(10)).contains("2 waiters ahead")
                    );
                }
            }
        }
    }
}
