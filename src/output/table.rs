//! What does `dlock status` show to people? One row a lock, and one more for every other holder of it. On a terminal the
//! table fits its width, and says once what a lock's rows have in common; into a pipe it is never cut, and each row says
//! all. What comes from the store is escaped cell by cell.

use super::history::how;
use super::locale::Charset;
use super::time::{local, span};
use super::{Coloured, escaped};
use crate::law::{Holder, LoggedEnd, State};
use crate::lock::Mode;
use crate::store::{View, Waiter};
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

const HEAD: [&str; 9] = ["KEY", "STATE", "MODE", "HOLDER", "SINCE", "LEFT", "WAITING", "LAST RUN", "COMMAND"];

/// Not shown where every lock is exclusive, as most are.
const MODE: usize = 2;

/// What the column of modes says of most locks; where it says nothing else it is not shown.
const EXCLUSIVE: &str = "exclusive";

/// What the rows of a lock have in common.
const COMMON: [usize; 4] = [0, 1, 6, 7];

/// What is given up on a narrow terminal, the first first: a column, and what is left of it at least. With nothing
/// left the column is not shown.
const GIVEN_UP: [(usize, usize); 10] =
    [(8, 12), (7, 8), (3, 16), (0, 12), (7, 0), (4, 8), (8, 6), (3, 10), (0, 8), (8, 0)];

/// The table, with a line end after each row; where there is no lock, a line that says so.
pub fn status(views: &[View], width: Width, coloured: Coloured) -> String {
    table(views, |_| Vec::new(), width, coloured)
}

/// The same, with those who wait under each lock.
pub fn watched(views: &[View], width: Width, coloured: Coloured) -> String {
    table(views, waiters, width, coloured)
}

fn table(
    views: &[View],
    under: impl Fn(&View) -> Vec<[String; HEAD.len()]>,
    width: Width,
    coloured: Coloured,
) -> String {
    if views.is_empty() {
        return "no lock is held, cooling or waited for\n".into();
    }
    let mut rows = vec![HEAD.map(String::from)];
    for view in views {
        rows.extend(lock(view, width));
        rows.extend(under(view));
    }
    let mut widths = [0; HEAD.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    // Waiters have a row of their own, if at all.
    let mut modes = rows[1..].iter().map(|row| row[MODE].as_str());
    if modes.all(|mode| ["", "-", EXCLUSIVE].contains(&mode)) {
        widths[MODE] = 0;
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
    Charset::of_environment().fitted(cell, width)
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

/// The rows of a lock.
fn lock(view: &View, width: Width) -> Vec<[String; HEAD.len()]> {
    let mut rows = vec![row(view, view.holders.first())];
    rows.extend(view.holders.iter().skip(1).map(|holder| row(view, Some(holder))));
    if width != Width::Endless {
        for row in &mut rows[1..] {
            for column in COMMON {
                row[column].clear();
            }
        }
    }
    rows
}

/// One holder of a lock, or none.
fn row(view: &View, holder: Option<&Holder>) -> [String; HEAD.len()] {
    let dash = || "-".to_owned();
    let state = match view.state {
        State::Held => "held",
        State::Free => "free",
        State::Cooling => "cooling",
        State::Revoked => "revoked",
    };
    let mode = match (view.mode, holder.and_then(|holder| holder.slot)) {
        (Some(Mode::Slots(slots)), Some(slot)) => format!("slot {slot}/{slots}"),
        (Some(mode), _) => mode.to_string(),
        (None, _) => dash(),
    };
    let who = match (holder, &view.foreign) {
        (Some(holder), _) => {
            let owner = &holder.owner;
            format!("{}@{} {}", owner.user, owner.host, owner.pid)
        }
        (None, Some(foreign)) => format!("not dlock ({})", foreign.kind),
        (None, None) => dash(),
    };
    let since = match holder {
        Some(holder) => format!("{} ({})", local(holder.since, view.now), span(holder.held)),
        None => dash(),
    };
    // With several holders it is free when the last of them has gone; each has an end of its own.
    let left = match holder {
        Some(holder) if view.holders.len() > 1 => Some(holder.lease),
        _ => view.left,
    };
    let left = match (view.state, left) {
        (State::Free, _) => dash(),
        (_, Some(left)) => span(left),
        (_, None) => "no end".into(),
    };
    let command = holder.map_or_else(dash, |holder| match &holder.owner.reason {
        Some(reason) => format!("{} ({reason})", holder.owner.command),
        None => holder.owner.command.clone(),
    });
    [
        escaped(view.name.key()).into_owned(),
        state.into(),
        mode,
        escaped(&who).into_owned(),
        since,
        left,
        if view.waiters.is_empty() { dash() } else { view.waiters.len().to_string() },
        view.log.first().map_or_else(dash, |end| last(end, view.now)),
        escaped(&command).into_owned(),
    ]
}

/// A row for each who waits, in order.
fn waiters(view: &View) -> Vec<[String; HEAD.len()]> {
    let row = |waiter: &Waiter| {
        let owner = &waiter.owner;
        let mut row = [const { String::new() }; HEAD.len()];
        row[1] = "waits".into();
        row[MODE] = waiter.mode.to_string();
        row[3] = escaped(&format!("{}@{} {}", owner.user, owner.host, owner.pid)).into_owned();
        row[6] = span(waiter.waiting);
        row[8] = escaped(&owner.command).into_owned();
        row
    };
    view.waiters.iter().map(row).collect()
}

/// The last end: how, how long ago, and how long it ran.
fn last(end: &LoggedEnd, now: u64) -> String {
    let ms = std::time::Duration::from_millis;
    let (ago, ran) = (now.saturating_sub(end.ended), end.ended.saturating_sub(end.since));
    format!("{} {} ago, ran {}", how(end), span(ms(ago)), span(ms(ran)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::law::Foreign;
    use crate::law::stat::Stat;
    use crate::law::{Holder, JobEnd, Outcome};
    use crate::lock::{Fence, Key, Name, Owner};
    use crate::store::Waiter;
    use std::time::Duration;

    fn owner(command: &str) -> Owner {
        Owner {
            host: "web1".into(),
            pid: 4711,
            user: "app".into(),
            command: command.into(),
            reason: Some("month\u{9b}end".into()),
            ..Owner::default()
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

    /// Two readers, and two of three slots.
    fn shared() -> Result<Vec<View>, String> {
        let mut views = views()?;
        views.truncate(1);
        let mut view = views.remove(0);
        view.holders.truncate(1);
        let held = |pid, slot| {
            let mut holder = view.holders[0].clone();
            holder.owner.pid = pid;
            holder.owner.command = format!("job {pid}");
            Holder { slot, ..holder }
        };
        let (readers, slots) =
            (vec![held(11, None), held(12, None)], vec![held(13, Some(2)), held(14, Some(0))]);
        Ok(vec![
            View { mode: Some(Mode::Shared), holders: readers, ..view.clone() },
            View { mode: Some(Mode::Slots(3)), holders: slots, ..view },
        ])
    }

    #[test]
    fn every_holder_has_a_row() -> Result<(), String> {
        let whole = status(&shared()?, Width::Endless, Coloured::No);
        println!("{whole}");
        let rows: Vec<&str> = whole.lines().skip(1).collect();
        for (row, part) in rows.iter().zip(["shared", "shared", "slot 2/3", "slot 0/3"]) {
            assert!(
                row.starts_with("nightly-report-of-the-whole-company  held") && row.contains(part),
                "{row}"
            );
        }
        let narrow = status(&shared()?, Width::Columns(80), Coloured::Yes);
        println!("{narrow}");
        let rows: Vec<&str> = narrow.lines().skip(1).collect();
        assert_eq!(
            rows.iter().map(|row| row.starts_with("nightly")).collect::<Vec<_>>(),
            [true, false, true, false]
        );
        for (row, pid) in rows.iter().zip(["11", "12", "13", "14"]) {
            assert!(row.contains(&format!("app@web1 {pid}")), "{row}");
        }
        let plain = status(&shared()?, Width::Columns(80), Coloured::No);
        assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
        assert!(!status(&views()?, Width::Endless, Coloured::No).contains("MODE"));
        Ok(())
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
        let watched = watched(&views, Width::Columns(100), Coloured::No);
        println!("{watched}");
        assert!(watched.lines().nth(2).is_some_and(|line| line.contains("waits") && line.contains("3s")));
        assert!(watched.lines().all(|line| line.chars().count() <= 100) && watched.lines().count() == 7);
        assert!(status(&[], Width::Endless, Coloured::No).starts_with("no lock"));
        Ok(())
    }
}
