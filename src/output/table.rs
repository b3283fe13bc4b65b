//! What does `dlock status` show to people? One row a lock. On a terminal the table fits its width; into a pipe it is
//! never cut. What comes from the store is escaped cell by cell.

use super::time::{local, span};
use super::{Coloured, escaped};
use crate::law::{JobEnd, LoggedEnd, Outcome, State};
use crate::store::View;
use std::fmt::Write as _;

/// The room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A terminal with this many columns.
    Columns(usize),
    /// A pipe or a file.
    Endless,
}

impl Width {
    /// The width of stdout.
    pub fn of_stdout() -> Self {
        match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 => Self::Columns(size.ws_col.into()),
            _ => Self::Endless,
        }
    }
}

const HEAD: [&str; 8] = ["KEY", "STATE", "HOLDER", "SINCE", "LEFT", "WAITING", "LAST RUN", "COMMAND"];

/// What is given up on a narrow terminal, the first first: a column, and what is left of it at least. With nothing
/// left the column is not shown.
const GIVEN_UP: [(usize, usize); 10] =
    [(7, 12), (6, 8), (2, 16), (0, 12), (6, 0), (3, 8), (7, 6), (2, 10), (0, 8), (7, 0)];

/// The table, with a line end after each row; where there is no lock, a line that says so.
pub fn status(views: &[View], width: Width, coloured: Coloured) -> String {
    if views.is_empty() {
        return "no lock is held, cooling or waited for\n".into();
    }
    let mut rows = vec![HEAD.map(String::from)];
    rows.extend(views.iter().map(row));
    let mut widths = [0; HEAD.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    if let Width::Columns(columns) = width {
        fit(&mut widths, columns);
    }
    let mut table = String::new();
    for (at, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate().filter(|(_, (_, width))| *width > 0)
        {
            let cell = cut(cell, width);
            let pad = width.saturating_sub(cell.chars().count());
            let paint = (at > 0 && column == 1).then(|| paint(cell.as_str(), coloured)).flatten();
            let (on, off) = paint.map_or(("", ""), |on| (on, "\x1b[0m"));
            let _infallible = write!(line, "{on}{cell}{off}{:pad$}  ", "");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// Takes from the columns until the rows fit. On less than some 50 columns they do not, and the terminal wraps.
fn fit(widths: &mut [usize; HEAD.len()], columns: usize) {
    for (column, least) in GIVEN_UP {
        let shown = widths.iter().filter(|width| **width > 0).count();
        let total = widths.iter().sum::<usize>() + 2 * shown.saturating_sub(1);
        let over = total.saturating_sub(columns);
        if over > 0 && least == 0 {
            widths[column] = 0;
        } else {
            widths[column] -= over.min(widths[column].saturating_sub(least));
        }
    }
}

/// The cell, at most this wide.
fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.into();
    }
    cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The colour of a state.
fn paint(state: &str, coloured: Coloured) -> Option<&'static str> {
    match (coloured, state) {
        (Coloured::No, _) => None,
        (Coloured::Yes, "held") => Some("\x1b[32m"),
        (Coloured::Yes, "cooling") => Some("\x1b[33m"),
        (Coloured::Yes, "revoked") => Some("\x1b[31m"),
        (Coloured::Yes, _) => None,
    }
}

/// One lock.
fn row(view: &View) -> [String; HEAD.len()] {
    let dash = || "-".to_owned();
    let state = match view.state {
        State::Held => "held",
        State::Free => "free",
        State::Cooling => "cooling",
        State::Revoked => "revoked",
    };
    let holder = match (view.holders.first(), &view.foreign) {
        (Some(holder), _) => {
            let owner = &holder.owner;
            format!("{}@{} {}", owner.user, owner.host, owner.pid)
        }
        (None, Some(foreign)) => format!("not dlock ({})", foreign.kind),
        (None, None) => dash(),
    };
    let since = match view.holders.first() {
        Some(holder) => format!("{} ({})", local(holder.since, view.now), span(holder.held)),
        None => dash(),
    };
    let left = match (view.state, view.left) {
        (State::Free, _) => dash(),
        (_, Some(left)) => span(left),
        (_, None) => "no end".into(),
    };
    let command = view.holders.first().map_or_else(dash, |holder| match &holder.owner.reason {
        Some(reason) => format!("{} ({reason})", holder.owner.command),
        None => holder.owner.command.clone(),
    });
    [
        escaped(view.name.key()).into_owned(),
        state.into(),
        escaped(&holder).into_owned(),
        since,
        left,
        if view.waiters.is_empty() { dash() } else { view.waiters.len().to_string() },
        view.log.first().map_or_else(dash, |end| last(end, view.now)),
        escaped(&command).into_owned(),
    ]
}

/// The last end: how, how long ago, and how long it ran.
fn last(end: &LoggedEnd, now: u64) -> String {
    let how = match (end.outcome, end.job) {
        (Outcome::Released, Some(JobEnd::Status(0))) => "ok".into(),
        (Outcome::Released, Some(JobEnd::Status(status))) => format!("exit {status}"),
        (Outcome::Released, Some(JobEnd::Signal(signal))) => format!("signal {signal}"),
        (Outcome::Released, None) => "ended".into(),
        (Outcome::Expired, _) => "expired".into(),
        (Outcome::Lost, _) => "lost".to_owned(),
        (Outcome::Forced, _) => "forced".into(),
    };
    let ms = std::time::Duration::from_millis;
    let (ago, ran) = (now.saturating_sub(end.ended), end.ended.saturating_sub(end.since));
    format!("{how} {} ago, ran {}", span(ms(ago)), span(ms(ran)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::law::stat::Stat;
    use crate::law::{Foreign, Holder};
    use crate::lock::{Fence, Key, Mode, Name, Owner};
    use crate::store::Waiter;
    use std::time::Duration;

    fn owner(command: &str) -> Owner {
        Owner {
            host: "web1".into(),
            pid: 4711,
            user: "app".into(),
            command: command.into(),
            reason: Some("month\u{9b}end".into()),
        }
    }

    pub(in crate::output) fn views() -> Result<Vec<View>, String> {
        let view = |key: &str| {
            Ok::<_, String>(View {
                name: Name::new("dlock:", &Key::new(key)?)?,
                now: 1_763_724_720_000,
                state: State::Free,
                foreign: None,
                mode: None,
                holders: vec![],
                left: None,
                fence: None,
                waiters: vec![],
                log: vec![],
                stat: Stat::default(),
            })
        };
        let holder = Holder {
            owner: owner(&"report --all ".repeat(15)),
            fence: Fence(1_763_724_000_000_001),
            since: 1_763_724_000_000,
            held: Duration::from_secs(720),
            lease: Duration::from_millis(26_500),
            slot: None,
            asked: None,
            confirmed: true,
        };
        let end = LoggedEnd {
            outcome: Outcome::Released,
            owner: owner("report"),
            fence: Fence(1),
            since: 1_763_637_600_000,
            ended: 1_763_638_020_000,
            waited: 12,
            job: Some(JobEnd::Status(3)),
            by: None,
        };
        let left = Some(Duration::from_millis(26_500));
        Ok(vec![
            View {
                state: State::Held,
                left,
                fence: Some(holder.fence),
                mode: Some(Mode::Exclusive),
                holders: vec![holder.clone()],
                waiters: vec![Waiter {
                    owner: owner("x"),
                    mode: Mode::Exclusive,
                    waiting: Duration::from_secs(3),
                }],
                log: vec![end],
                ..view("nightly-report-of-the-whole-company")?
            },
            View { state: State::Cooling, mode: Some(Mode::Exclusive), left, ..view("b\u{202e}c")? },
            View {
                state: State::Revoked,
                mode: Some(Mode::Exclusive),
                left,
                holders: vec![holder],
                ..view("r")?
            },
            View {
                state: State::Held,
                foreign: Some(Foreign { kind: "hash".into(), left: None }),
                ..view("f")?
            },
            view("free")?,
        ])
    }

    #[test]
    fn a_pipe_gets_all_and_a_terminal_what_fits() -> Result<(), String> {
        let views = views()?;
        let whole = status(&views, Width::Endless, Coloured::No);
        println!("{whole}");
        assert!(whole.contains(&"report --all ".repeat(15)) && whole.contains("no end"));
        assert!(!whole.contains(|c: char| c != '\n' && super::super::acts(c)));
        for columns in [56, 80, 100, 200] {
            let table = status(&views, Width::Columns(columns), Coloured::No);
            println!("{table}");
            assert!(table.lines().all(|line| line.chars().count() <= columns), "{table}");
            assert_eq!(table.lines().count(), 6);
        }
        let painted = status(&views, Width::Columns(100), Coloured::Yes);
        assert_eq!(painted.matches("\x1b[0m").count(), 4);
        assert!(status(&[], Width::Endless, Coloured::No).starts_with("no lock"));
        Ok(())
    }
}
