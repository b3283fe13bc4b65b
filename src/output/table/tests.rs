//! Tests that the table fits, whatever is in it, and that key and holder can always be read.

use super::*;
use crate::exit::Ended;
use crate::lock::{Fence, Key, Name, Owner};
use crate::rules::Foreign;
use crate::rules::stat::Stat;
use crate::rules::{Holder, Outcome};
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
            expected: None,
        })
    };
    let holder = Holder {
        owner: owner(&"report --all ".repeat(15)),
        fence: Fence(1_763_724_000_000_001),
        since: 1_763_724_000_000,
        held: Duration::from_secs(720),
        waited: Duration::ZERO,
        lease: Duration::from_millis(26_500),
        slot: None,
        asked: None,
        superseded: false,
        during_pause: false,
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
        during_pause: false,
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
                during_pause: false,
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
        View { state: State::Held, foreign: Some(Foreign { kind: "hash".into(), left: None }), ..view("f")? },
        view("free")?,
    ])
}

/// Two shared holders, and two of three slots.
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
    let (readers, slots) = (vec![held(11, None), held(12, None)], vec![held(13, Some(2)), held(14, Some(0))]);
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
        assert!(row.starts_with("nightly-report-of-the-whole-company  held") && row.contains(part), "{row}");
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
fn pipe_gets_everything_and_terminal_what_fits() -> Result<(), String> {
    let views = views()?;
    let whole = status(&views, Width::Endless, Coloured::No);
    println!("{whole}");
    assert!(whole.contains(&"report --all ".repeat(15)) && whole.contains("no end"));
    assert!(!whole.contains(|c: char| c != '\n' && crate::output::escape::acts(c)));
    for columns in [80, 100, 200] {
        let table = status(&views, Width::Columns(columns), Coloured::No);
        println!("{table}");
        assert!(table.lines().all(|line| width(line) <= columns), "{table}");
        assert_eq!(table.lines().count(), 6);
    }
    let painted = status(&views, Width::Columns(100), Coloured::Yes);
    assert_eq!(painted.matches("\x1b[0m").count(), 4);
    Ok(())
}

/// At every width, key and holder can be read, and no line is wider than the terminal.
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
        let table = status(&views, Width::Columns(columns), Coloured::No);
        if [20, 60, 80, 100].contains(&columns) {
            println!("{columns}\n{table}");
        }
        assert!(table.lines().all(|line| width(line) <= columns), "{columns}\n{table}");
        for view in &views {
            assert!(squeezed(&table).contains(&squeezed(&escaped(view.name.key()))), "{columns}\n{table}");
            for holder in &view.holders {
                let cell = owner::cell(&holder.owner);
                assert!(squeezed(&table).contains(&squeezed(&cell)), "{columns}\n{table}");
            }
        }
    }
    Ok(())
}

/// One long key takes no column from the other locks.
#[test]
fn long_key_takes_no_room_of_other_rows() -> Result<(), String> {
    let usual = views()?.swap_remove(0);
    let named = |key: &str| -> Result<View, String> {
        Ok(View { name: Name::new("dlock:", &Key::new(key)?)?, ..usual.clone() })
    };
    let short = [named("backup")?, named("report")?];
    let long = "deployments/production/".repeat(4);
    let with = [&short[..], &[named(&long)?]].concat();
    for columns in [80, 140] {
        let without = status(&short, Width::Columns(columns), Coloured::No);
        let table = status(&with, Width::Columns(columns), Coloured::No);
        println!("{table}");
        assert!(table.starts_with(&without), "{columns}\n{without}\n{table}");
        assert_eq!(table.lines().filter(|line| line.replace(' ', "").contains(&long[..60])).count(), 1);
        assert!(table.lines().all(|line| width(line) <= columns), "{table}");
    }
    Ok(())
}

/// Columns are aligned, also if characters are two columns wide.
#[test]
fn columns_are_aligned() -> Result<(), String> {
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
fn pipe_gets_cells_of_any_width() -> Result<(), String> {
    let mut views = views()?;
    views[0].holders[0].owner.command = "x".repeat(70_000);
    for (width, lines) in [(Width::Endless, 6), (Width::Columns(80), 6)] {
        assert_eq!(status(&views, width, Coloured::No).lines().count(), lines);
    }
    Ok(())
}
