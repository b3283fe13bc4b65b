//! The pictures of the README must be what dlock shows. They are drawn from a real terminal, and
//! compared without what differs from run to run: numbers, lengths of spaces and bars.
//! `DLOCK_REGENERATE=1 cargo test pictures` draws them anew.

use crate::support::dlock::Running;
use crate::support::masters::steered_clock;
use crate::support::pty::Terminal;
use crate::support::redis::Redis;
use crate::support::wait::wait_until;
use crate::support::world::World;
use regex_lite::Regex;
use rustix::process::{Signal, geteuid};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const ROWS: u16 = 24;
const COLUMNS: u16 = 104;
const JOB: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

/// Text, background, and the terminal colours 1 to 5.
struct Palette {
    name: &'static str,
    text: &'static str,
    background: &'static str,
    colours: [&'static str; 5],
}

const PALETTES: [Palette; 2] = [
    Palette {
        name: "light",
        text: "#1f2328",
        background: "#f6f8fa",
        colours: ["#cf222e", "#116329", "#7d4e00", "#0550ae", "#8250df"],
    },
    Palette {
        name: "dark",
        text: "#e6edf3",
        background: "#161b22",
        colours: ["#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff"],
    },
];

/// A character and its colour.
type Cell = (String, vt100::Color);

/// The command that starts a program on a machine of this name.
fn machine(name: &str) -> Vec<String> {
    let user: &[&str] = if geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let script = format!("echo {name} > /proc/sys/kernel/hostname; exec \"$@\"");
    let words = ["unshare", "--uts"].iter().chain(user).chain(&["sh", "-c"]).map(|word| (*word).to_owned());
    words.chain([script, "sh".into()]).collect()
}

fn run_on<'w>(
    world: &'w World,
    name: &str,
    options: &[&str],
    script: &str,
) -> crate::support::dlock::Dlock<'w> {
    let words = machine(name);
    let words = words.iter().map(String::as_str).collect::<Vec<_>>();
    world.run("nightly-report", options, script).under(&words)
}

/// Starts a run that holds the lock until the file `go` exists.
fn holder(world: &World) -> Running {
    let holder = run_on(world, "web-1", &["--label", "report"], JOB).spawn();
    world.wait_for_log("up");
    holder
}

/// An empty terminal on a third machine.
fn terminal(world: &World) -> Terminal {
    let mut terminal = Terminal::with_size(world, "xterm-256color", ROWS, COLUMNS);
    let shell = machine("web-3").iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    terminal.press(&format!("LC_ALL=C.UTF-8 exec {shell} bash --norc --noprofile --noediting -i\n"));
    terminal.expect("READY> ");
    terminal.press("clear\n");
    terminal.expect("READY> ");
    terminal
}

/// Types a command and waits until it ends.
fn enter(terminal: &mut Terminal, line: &str) {
    terminal.type_line(line);
    terminal.expect("READY> ");
}

#[test]
fn the_busy_line_and_the_waiting_line_are_fresh() {
    let world = World::with_redis(&[]);
    let holder = holder(&world);
    let waiter = run_on(&world, "web-2", &["-w", "--label", "report"], "true").any_stderr().spawn();
    world.wait_for_waiters("nightly-report", 1);
    let mut terminal = terminal(&world);
    enter(&mut terminal, "dlock run -k nightly-report -- report");
    terminal.type_line("dlock run -k nightly-report -w -- report");
    let line = Regex::new("^dlock: waiting [0-9]+s ").expect("a pattern");
    wait_until("the line", || terminal.rows().last().is_some_and(|row| line.is_match(row)));
    fresh("waiting", &world, &terminal);
    let page =
        include_str!("../../docs/use.md").split("```text\n").nth(1).and_then(|text| text.split("```").next());
    let shown = terminal.rows().join("");
    let shown = shown
        .split_once("-- report")
        .and_then(|(_, said)| said.split_once("READY>"))
        .expect("the busy line")
        .0;
    let shown = shown.replace(&world.url(), "redis://redis.internal:6379");
    assert_eq!(lasting(page.expect("the busy line")), lasting(&shown));
    terminal.press("\x03");
    terminal.expect("READY> ");
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

#[test]
fn the_status_is_fresh() {
    let world = World::with_redis(&[]);
    let holder = holder(&world);
    let mut waiters = Vec::new();
    for (number, name) in [(1, "web-2"), (2, "web-4")] {
        waiters.push(run_on(&world, name, &["-w", "--label", "report"], "true").any_stderr().spawn());
        world.wait_for_waiters("nightly-report", number);
    }
    let waits = |waiter: &Value| waiter["waiting_ms"].as_u64() >= Some(3000);
    wait_until("they have waited a while", || {
        world.status("nightly-report")["waiters"].as_array().is_some_and(|all| all.iter().all(waits))
    });
    let words = machine("web-4");
    let on_web_4: Vec<&str> = words.iter().map(String::as_str).collect();
    let reader = || world.run("search-index", &["-s", "--label", "search"], JOB).under(&on_web_4).spawn();
    let readers = [reader(), reader()];
    world.wait_for_lines("up", 3);
    world.run("hourly-sync", &["--min-hold", "10m"], "true").under(&on_web_4).run();
    let mut terminal = terminal(&world);
    enter(&mut terminal, "dlock status");
    enter(&mut terminal, "dlock status nightly-report");
    fresh("status", &world, &terminal);
    world.write("go", "");
    holder.finish();
    waiters.into_iter().chain(readers).for_each(|job| drop(job.finish()));
}

#[test]
fn the_history_is_fresh() {
    fresh_at_last("history", || {
        let world = World::with_redis(&[]);
        for (name, options, script, status) in [
            ("web-1", &[][..], "sleep 0.9", 0),
            ("web-2", &[], "sleep 0.7", 0),
            ("web-1", &[], "sleep 0.5; exit 3", 3),
            ("web-2", &["--max-run", "1.2"], "sleep 60", 124),
        ] {
            run_on(&world, name, options, script).any_stderr().status(status).run();
        }
        let holder = run_on(&world, "web-1", &[], "echo up >> log; sleep 1").spawn();
        world.wait_for_log("up");
        run_on(&world, "web-2", &["-w"], "sleep 0.8").any_stderr().run();
        holder.finish();
        let mut terminal = terminal(&world);
        enter(&mut terminal, "dlock history nightly-report");
        (world, terminal)
    });
}

#[test]
fn the_nights_are_fresh() {
    fresh_at_last("nights", || {
        let mut world = World::without_redis();
        let _server = play_nights(&mut world);
        let mut terminal = terminal(&world);
        enter(&mut terminal, "dlock history nightly-report");
        (world, terminal)
    });
}

/// Compares a picture whose columns are as wide as what took place was long. A busy machine needs
/// longer, so it plays it again.
fn fresh_at_last(name: &str, play: impl Fn() -> (World, Terminal)) {
    let is_good = |(world, terminal): &(World, Terminal)| difference(name, world, terminal).is_none();
    let (world, terminal) = (0..3).map(|_| play()).find(is_good).unwrap_or_else(&play);
    fresh(name, &world, &terminal);
}

/// Plays six nights on a server whose clock the test moves: before each night, and while its job
/// runs. The lease is longer than a night, so that no renewal happens while the clock moves.
fn play_nights(world: &mut World) -> Redis {
    const MINUTE: i64 = 60_000_000;
    let clock = world.path("clock");
    // The server maps the file, so it must not become shorter.
    let ahead = |by: i64| {
        let file = fs::File::options().write(true).create(true).truncate(false).open(&clock);
        file.expect("a clock").write_all(&by.to_ne_bytes()).expect("a time");
    };
    ahead(0);
    let environment = vec![("LD_PRELOAD", steered_clock().into()), ("STEERED_STEPS", clock.clone().into())];
    let server = Redis::start_within(&world.path(""), &[], environment);
    world.use_store(server.url());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_micros();
    let first = 3 * 60 * MINUTE - i64::try_from(now).expect("a time") % (24 * 60 * MINUTE);
    for (night, name, minutes, end) in [
        (0, "web-2", 19, "exit 0"),
        (1, "web-2", 2, "exit 3"),
        (1, "web-1", 24, "exit 0"),
        (2, "web-1", 20, "exit 0"),
        (3, "web-1", 9, "crash"),
        (3, "web-2", 23, "exit 0"),
        (4, "web-2", 21, "exit 0"),
        (5, "web-1", 22, "exit 0"),
    ] {
        let begin = first + night * 24 * 60 * MINUTE + if minutes > 22 { 10 * MINUTE } else { 0 };
        ahead(begin);
        let script = format!("while [ ! -e go ]; do sleep 0.1; done; {end}");
        let call = run_on(world, name, &["-t", "20h", "--label", "report"], &script).any_stderr();
        let call = match end {
            "exit 3" => call.status(3),
            "crash" => call.dies_of(Signal::KILL.as_raw()),
            _ => call,
        };
        let job = call.spawn();
        world.wait_for_state("nightly-report", "held");
        ahead(begin + minutes * MINUTE);
        if end == "crash" {
            job.signal(Signal::KILL);
        } else {
            world.write("go", "");
        }
        job.finish();
        world.wait_for_state("nightly-report", "free");
        drop(fs::remove_file(world.path("go")));
    }
    server
}

#[test]
fn the_findings_of_the_doctor_are_fresh() {
    let world = World::with_redis(&[]);
    // `doctor` warns of a server that is younger than a lease.
    // On a busy machine a round trip may take too long for such a lease: then its status is 69.
    let young = || {
        let findings = world.dlock(["doctor", "-t", "5s"]).any_stdout().spawn().output();
        findings.stdout.contains("warn  uptime")
    };
    wait_until("the server is old enough", || !young());
    let mut terminal = terminal(&world);
    // `doctor` reports a slow machine, and this one may be slow for a moment.
    wait_until("the findings are those of the picture", || {
        terminal.press("clear\n");
        terminal.expect("READY> ");
        enter(&mut terminal, "dlock doctor -t 5s");
        difference("doctor", &world, &terminal).is_none()
    });
}

/// The picture of docs/protocol.md must be what its script prints.
#[test]
fn the_theory_of_operation_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for palette in &PALETTES {
        let mut script = Command::new("python3");
        let output =
            script.arg(root.join("tests/docs/theory.py")).arg(palette.name).output().expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).expect("a picture");
        let path = root.join(format!("docs/pictures/theory-{}.svg", palette.name));
        if std::env::var_os("DLOCK_REGENERATE").is_some_and(|value| value == "1") {
            fs::write(&path, printed).expect("a picture");
            continue;
        }
        let drawn = fs::read_to_string(&path).expect("the picture of the page");
        assert!(drawn == printed, "DLOCK_REGENERATE=1 cargo test pictures");
    }
}

#[track_caller]
fn fresh(name: &str, world: &World, terminal: &Terminal) {
    if let Some((drawn, shown)) = difference(name, world, terminal) {
        panic!("{name}: DLOCK_REGENERATE=1 cargo test pictures\n{drawn}\n{shown}");
    }
}

/// Compares a picture with the terminal, or draws it. Returns both if they differ.
fn difference(name: &str, world: &World, terminal: &Terminal) -> Option<(String, String)> {
    let mut lines = terminal.coloured_lines();
    // Leaves out the prompt of the next command.
    if lines.last().is_some_and(|line| text(line) == "READY>") {
        lines.pop();
    }
    let address = world.url().replace("redis://", "");
    for line in &mut lines {
        replace(line, "READY> ", "$ ");
        replace(line, &format!("redis://{address}"), "redis://redis.internal");
        replace(line, &address, "redis.internal:6379");
    }
    let rows = lines.iter().flat_map(|line| line.chunks(COLUMNS.into())).collect::<Vec<_>>();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    for palette in &PALETTES {
        let picture = draw(&rows, palette);
        let path = directory.join(format!("{name}-{}.svg", palette.name));
        if std::env::var_os("DLOCK_REGENERATE").is_some_and(|value| value == "1") {
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(&path, picture).expect("a picture");
            continue;
        }
        let drawn = lasting(&fs::read_to_string(&path).unwrap_or_default());
        let shown = lasting(&picture);
        if drawn != shown {
            return Some((drawn, shown));
        }
    }
    None
}

fn text(line: &[Cell]) -> String {
    line.iter().map(|(text, _)| text.as_str()).collect::<String>().trim_end().to_owned()
}

/// Replaces a text by another one in the same colour.
fn replace(line: &mut Vec<Cell>, old: &str, new: &str) {
    let old = old.chars().map(String::from).collect::<Vec<_>>();
    let mut from = 0;
    while let Some(at) =
        line[from..].windows(old.len()).position(|cells| cells.iter().map(|(text, _)| text).eq(&old))
    {
        let at = from + at;
        let colour = line[at].1;
        let cells = new.chars().map(|letter| (letter.to_string(), colour)).collect::<Vec<_>>();
        from = at + cells.len();
        line.splice(at..at + old.len(), cells);
    }
}

/// Draws the screen as SVG: one text per row, one span per colour.
fn draw(rows: &[&[Cell]], palette: &Palette) -> String {
    let (advance, height, margin) = (8.4, 19.0, 14.0);
    let width = f64::from(COLUMNS) * advance + 2.0 * margin;
    let total = rows.len() as f64 * height + 2.0 * margin;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {total:.0}\" width=\"{width:.0}\" height=\"{total:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>\n\
         <g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"14\" fill=\"{}\" xml:space=\"preserve\">\n",
        palette.background, palette.text
    );
    for (number, row) in rows.iter().enumerate() {
        let y = margin + (number as f64 + 0.75) * height;
        let mut column = 0;
        for run in row.chunk_by(|one, next| one.1 == next.1) {
            let shown = run.iter().map(|(text, _)| text.as_str()).collect::<String>();
            let at = column;
            column += run.len();
            if shown.trim().is_empty() {
                continue;
            }
            let x = margin + at as f64 * advance;
            let length = run.len() as f64 * advance;
            let fill = match run[0].1 {
                vt100::Color::Idx(number @ 1..=5) => {
                    format!(" fill=\"{}\"", palette.colours[usize::from(number) - 1])
                }
                _ => String::new(),
            };
            let shown = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            picture.push_str(&format!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\"{fill}>{shown}</text>\n"
            ));
        }
    }
    picture.push_str("</g>\n</svg>\n");
    picture
}

/// The part of a picture that is the same in every run: words and colours, without numbers, bars
/// and line breaks.
fn lasting(picture: &str) -> String {
    let mut lasting = picture.to_owned();
    for (pattern, replacement) in [
        (" (x|y|width|height|viewBox|textLength)=\"[^\"]*\"", ""),
        ("[\\s\u{2500}-\u{257f}]+", ""),
        ("</text><text>", ""),
        // It is random.
        ("identity[0-9a-f]{8}", "identity0"),
        ("[0-9.]+(ms|s|m)?([0-9]+s)?", "0"),
        ("[0:]+", "0"),
        ("<textfill=\"[^\"]*\"></text>", ""),
        ("</?text>", ""),
    ] {
        lasting = Regex::new(pattern).expect("a pattern").replace_all(&lasting, replacement).into_owned();
    }
    lasting
}
