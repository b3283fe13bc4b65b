//! What does `dlock status` show to people of several locks? One row a lock, and one more for every other holder of it. On
//! a terminal the table fits its width: KEY and HOLDER are never cut, what matters less is left out, and where the two do
//! not fit side by side they stand below each other. A lock's rows say once what they have in common. Into a pipe all
//! of it goes, and each row says all. What comes from the store is escaped cell by cell. One lock alone is in `record`.

use super::columns::{broken, padded, spaces, width};
use super::history::how;
use super::locale::Charset;
use super::owner::{self, because};
use super::time::{local, span};
use super::{Coloured, escaped};
use crate::law::{Holder, LoggedEnd, State};
use crate::lock::Mode;
use crate::store::{View, Waiter};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A terminal with this many columns.
    Columns(usize),
    /// A pipe or a file.
    Endless,
}

impl Width {
    pub fn of_stdout() -> Self {
        match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 => Self::Columns(size.ws_col.into()),
            _ => Self::Endless,
        }
    }
}

const HEAD: [&str; 9] = ["KEY", "STATE", "MODE", "HOLDER", "SINCE", "LEFT", "WAITING", "LAST RUN", "COMMAND"];
const KEY: usize = 0;
const STATE: usize = 1;
/// Not shown where every lock is exclusive, as most are.
const MODE: usize = 2;
const HOLDER: usize = 3;
const SINCE: usize = 4;
const LEFT: usize = 5;
const WAITING: usize = 6;
const LAST_RUN: usize = 7;
/// The last, and the only one that is ever cut.
const COMMAND: usize = 8;

/// What the column of modes says of most locks; where it says nothing else it is not shown.
const EXCLUSIVE: &str = "exclusive";
/// What a cell says that has nothing to say.
const NOTHING: &str = "-";

/// What the rows of a lock have in common.
const COMMON: [usize; 4] = [KEY, STATE, WAITING, LAST_RUN];

const GAP: usize = 2;
/// Before what stands below a key.
const INDENT: usize = 2;

/// What is given up on a narrow terminal, the first first.
const GIVEN_UP: [GivenUp; 11] = [
    GivenUp::CommandBeyond(12),
    GivenUp::Column(LAST_RUN),
    GivenUp::HowLong,
    GivenUp::IfIdle(WAITING),
    GivenUp::CommandBeyond(8),
    GivenUp::Column(COMMAND),
    GivenUp::Column(WAITING),
    GivenUp::Column(SINCE),
    GivenUp::Column(MODE),
    GivenUp::Column(LEFT),
    // KEY, or HOLDER with it, stands on lines of its own; what was given up comes back as far as there is room.
    GivenUp::Column(STATE),
];

enum GivenUp {
    /// The end of the command, but not these many columns.
    CommandBeyond(usize),
    /// How long ago that was, in SINCE.
    HowLong,
    /// A column in which nothing is said.
    IfIdle(usize),
    Column(usize),
}

/// What stands in a row, and the shorter form of SINCE.
#[derive(Default)]
struct Row {
    cells: [String; HEAD.len()],
    since: String,
}

/// The table, with a line end after each row.
pub fn status(views: &[View], width: Width, coloured: Coloured) -> String {
    table(views, |_| Vec::new(), width, coloured)
}

/// The same, with those who wait under each lock.
pub fn watched(views: &[View], width: Width, coloured: Coloured) -> String {
    table(views, waiters, width, coloured)
}

fn table(views: &[View], under: impl Fn(&View) -> Vec<Row>, width: Width, coloured: Coloured) -> String {
    let head = Row { cells: HEAD.map(String::from), since: HEAD[SINCE].into() };
    let mut rows = vec![head];
    for view in views {
        rows.extend(lock(view, width));
        rows.extend(under(view));
    }
    let layout = Layout::of(&rows, width);
    let mut text = String::new();
    for (at, row) in rows.into_iter().enumerate() {
        for line in layout.lines(row, if at == 0 { Coloured::No } else { coloured }) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

struct Layout {
    /// How wide the columns are that stand side by side; those that do not are 0.
    widths: [usize; HEAD.len()],
    is_since_short: bool,
    /// The columns that stand on lines of their own: KEY above the others, HOLDER below.
    apart: &'static [usize],
    columns: usize,
}

impl Layout {
    fn of(rows: &[Row], width: Width) -> Self {
        let Width::Columns(columns) = width else {
            let widths = natural(rows, false);
            return Self { widths, is_since_short: false, apart: &[], columns: usize::MAX };
        };
        let apart: [&'static [usize]; 3] = [&[], &[KEY], &[KEY, HOLDER]];
        let fits = apart.into_iter().find_map(|apart| Self::fitting(rows, columns, apart));
        fits.unwrap_or(Self { widths: [0; HEAD.len()], is_since_short: true, apart: &[KEY, HOLDER], columns })
    }

    /// The layout with these columns apart that fits, if there is one with all that must be there.
    fn fitting(rows: &[Row], columns: usize, apart: &'static [usize]) -> Option<Self> {
        let room = if apart.is_empty() { columns } else { columns.checked_sub(INDENT)? };
        let mut least_of_command = usize::MAX;
        let mut layout = Self { widths: natural(rows, false), is_since_short: false, apart, columns };
        apart.iter().for_each(|column| layout.widths[*column] = 0);
        let mut given_up = GIVEN_UP.iter();
        loop {
            let command = layout.widths[COMMAND];
            let shown = layout.widths.iter().filter(|width| **width > 0).count();
            let total = layout.widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1);
            let fixed = total - command;
            if fixed + command.min(least_of_command) <= room {
                layout.widths[COMMAND] = command.min(room - fixed);
                return Some(layout);
            }
            let shows =
                |column: usize| rows[1..].iter().any(|row| !["", NOTHING].contains(&&*row.cells[column]));
            match given_up.next()? {
                GivenUp::CommandBeyond(least) => least_of_command = *least,
                GivenUp::HowLong => {
                    layout.is_since_short = true;
                    layout.widths[SINCE] = layout.widths[SINCE].min(natural(rows, true)[SINCE]);
                }
                GivenUp::IfIdle(column) if shows(*column) => {}
                // The last resort: what is left does not fit beside the rest.
                GivenUp::Column(STATE) if apart.len() < 2 => return None,
                GivenUp::IfIdle(column) | GivenUp::Column(column) => layout.widths[*column] = 0,
            }
        }
    }

    fn lines(&self, row: Row, coloured: Coloured) -> Vec<String> {
        let Row { mut cells, since } = row;
        if self.is_since_short {
            cells[SINCE] = since;
        }
        let below = |column: usize, indent: usize| {
            let is_apart = self.apart.contains(&column) && !cells[column].is_empty();
            let lines = if is_apart {
                broken(&cells[column], self.columns.saturating_sub(indent))
            } else {
                Vec::new()
            };
            lines.into_iter().map(move |line| padded("", indent) + &line)
        };
        let mut line = if self.apart.is_empty() { String::new() } else { padded("", INDENT) };
        for (column, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            if width == 0 {
                continue;
            }
            let cell = cut(cell, width);
            let on = if column == STATE { colour(&cell) } else { None };
            line.push_str(&coloured.paint(&cell, on));
            line.push_str(&spaces(width.saturating_sub(self::width(&cell)) + GAP));
        }
        let beside = Some(line).filter(|line| !line.trim().is_empty());
        below(KEY, 0).chain(beside).chain(below(HOLDER, 2 * INDENT)).collect()
    }
}

/// How wide each column is if nothing is cut; 0 if it is not to be shown.
fn natural(rows: &[Row], is_since_short: bool) -> [usize; HEAD.len()] {
    let mut widths = [0; HEAD.len()];
    for row in rows {
        for (column, (most, cell)) in widths.iter_mut().zip(&row.cells).enumerate() {
            let cell = if column == SINCE && is_since_short { &row.since } else { cell };
            *most = width(cell).max(*most);
        }
    }
    let mut modes = rows[1..].iter().map(|row| row.cells[MODE].as_str());
    if modes.all(|mode| ["", NOTHING, EXCLUSIVE].contains(&mode)) {
        widths[MODE] = 0;
    }
    widths
}

/// The cell, at most this wide.
fn cut(cell: &str, room: usize) -> String {
    if width(cell) <= room { cell.into() } else { Charset::of_environment().fitted(cell, room) }
}

pub(super) fn colour(state: &str) -> Option<&'static str> {
    match state {
        "held" => Some("\x1b[32m"),
        "cooling" => Some("\x1b[33m"),
        "revoked" => Some("\x1b[31m"),
        _ => None,
    }
}

fn lock(view: &View, width: Width) -> Vec<Row> {
    let mut rows = vec![row(view, view.holders.first())];
    rows.extend(view.holders.iter().skip(1).map(|holder| row(view, Some(holder))));
    if width != Width::Endless {
        for row in &mut rows[1..] {
            for column in COMMON {
                row.cells[column].clear();
            }
        }
    }
    rows
}

/// One holder of a lock, or none.
fn row(view: &View, holder: Option<&Holder>) -> Row {
    let dash = || NOTHING.to_owned();
    let mode = match (view.mode, holder.and_then(|holder| holder.slot)) {
        (Some(Mode::Slots(slots)), Some(slot)) => format!("slot {slot}/{slots}"),
        (Some(mode), _) => mode.to_string(),
        (None, _) => dash(),
    };
    let who = match (holder, &view.foreign) {
        (Some(holder), _) => owner::cell(&holder.owner),
        (None, Some(foreign)) => escaped(&format!("not dlock ({})", foreign.kind)).into_owned(),
        (None, None) if !view.is_used() => "never used".into(),
        (None, None) => dash(),
    };
    let since = holder.map_or_else(dash, |holder| local(holder.since, view.now));
    let since_ago = holder.map_or_else(dash, |holder| format!("{since} ({})", span(holder.held)));
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
    let command =
        holder.map_or_else(dash, |Holder { owner, .. }| format!("{}{}", owner.command, because(owner)));
    let cells = [
        escaped(view.name.key()).into_owned(),
        view.state.word().into(),
        mode,
        who,
        since_ago,
        left,
        if view.waiters.is_empty() { dash() } else { view.waiters.len().to_string() },
        view.log.first().map_or_else(dash, |end| last(end, view.now)),
        escaped(&command).into_owned(),
    ];
    Row { cells, since }
}

/// A row for each who waits, in order.
fn waiters(view: &View) -> Vec<Row> {
    let row = |waiter: &Waiter| {
        let mut row = Row::default();
        row.cells[STATE] = "waits".into();
        row.cells[MODE] = waiter.mode.to_string();
        row.cells[HOLDER] = owner::cell(&waiter.owner);
        row.cells[WAITING] = span(waiter.waiting);
        row.cells[COMMAND] = escaped(&waiter.owner.command).into_owned();
        row
    };
    view.waiters.iter().map(row).collect()
}

/// The last end: how, how long ago, and how long it ran.
pub(super) fn last(end: &LoggedEnd, now: u64) -> String {
    let ms = std::time::Duration::from_millis;
    let (ago, ran) = (now.saturating_sub(end.ended), end.ended.saturating_sub(end.since));
    format!("{} {} ago, ran {}", how(end), span(ms(ago)), span(ms(ran)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::exit::Ended;
    use crate::law::Foreign;
    use crate::law::stat::Stat;
    use crate::law::{Holder, Outcome};
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
                success: None,
                paused: None,
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
            superseded: false,
            confirmed: true,
        };
        let end = LoggedEnd {
            outcome: Outcome::Released,
            owner: owner("report"),
            fence: Fence(1),
            since: 1_763_637_600_000,
            ended: 1_763_638_020_000,
            waited: 12,
            job: Some(Ended::Code(3)),
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
                    replaces: true,
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
        assert!(plain.lines().all(|line| width(line) <= 80), "{plain}");
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
        for columns in [80, 100, 200] {
            let table = status(&views, Width::Columns(columns), Coloured::No);
            println!("{table}");
            assert!(table.lines().all(|line| width(line) <= columns), "{table}");
            assert_eq!(table.lines().count(), 6);
        }
        let painted = status(&views, Width::Columns(100), Coloured::Yes);
        assert_eq!(painted.matches("\x1b[0m").count(), 4);
        let watched = watched(&views, Width::Columns(100), Coloured::No);
        println!("{watched}");
        assert!(watched.lines().nth(2).is_some_and(|line| line.contains("waits") && line.contains("3s")));
        assert!(watched.lines().all(|line| width(line) <= 100) && watched.lines().count() == 7);
        Ok(())
    }

    /// Whatever the width, key and holder can be read, and no line is wider than the terminal.
    #[test]
    fn key_and_holder_are_never_cut() -> Result<(), String> {
        let mut views = views()?;
        views.extend(shared()?);
        let usual = views[0].clone();
        let wide = |key: &str, host: &str| -> Result<View, String> {
            let mut view = usual.clone();
            view.name = Name::new("dlock:", &Key::new(key)?)?;
            view.holders[0].owner.host = host.into();
            view.holders[0].owner.command = "sleep 600".into();
            Ok(view)
        };
        views.push(wide("夜间报告🚀", "数据库一号")?);
        views.push(wide(&"long-".repeat(30), &"host.".repeat(20))?);
        let squeezed = |text: &str| text.replace([' ', '\n'], "");
        for columns in (20..=130).rev() {
            for table in [status, watched] {
                let table = table(&views, Width::Columns(columns), Coloured::No);
                if [20, 60, 80, 100].contains(&columns) {
                    println!("{columns}\n{table}");
                }
                assert!(table.lines().all(|line| width(line) <= columns), "{columns}\n{table}");
                for view in &views {
                    assert!(
                        squeezed(&table).contains(&squeezed(&escaped(view.name.key()))),
                        "{columns}\n{table}"
                    );
                    for holder in &view.holders {
                        assert!(
                            squeezed(&table).contains(&squeezed(&owner::cell(&holder.owner))),
                            "{columns}\n{table}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Columns stand below each other, also where characters are two columns wide.
    #[test]
    fn columns_are_straight() -> Result<(), String> {
        let mut views = views()?;
        views.truncate(1);
        views[0].name = Name::new("dlock:", &Key::new("k")?)?;
        let mut other = views[0].clone();
        other.name = Name::new("dlock:", &Key::new("夜间🚀")?)?;
        views.push(other);
        for columns in [60, 80, 100] {
            let table = status(&views, Width::Columns(columns), Coloured::No);
            let place = |row: &str, what: &str| Some(width(&row[..row.find(what)?]));
            let places: Vec<_> =
                table.lines().map(|line| place(line, "app@").or(place(line, "HOLDER"))).collect();
            assert!(places[0].is_some() && places.iter().all(|at| *at == places[0]), "{table}");
        }
        Ok(())
    }

    /// A cell of any width is shown.
    #[test]
    fn nothing_is_too_wide_for_a_pipe() -> Result<(), String> {
        let mut views = views()?;
        views[0].holders[0].owner.command = "x".repeat(70_000);
        for width in [Width::Endless, Width::Columns(80)] {
            assert_eq!(status(&views, width, Coloured::No).lines().count(), 6);
        }
        Ok(())
    }
}
