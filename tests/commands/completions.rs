//! The completion scripts in real shells: they offer the store's keys where a key is expected, in
//! time, and no files in place of keys.

use crate::support::dlock::BINARY;
use crate::support::pty::Terminal;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use std::net::TcpListener;
use std::process::Command;

/// Whether this shell is installed. `./test` installs it; with a bare `cargo test` it may be
/// missing.
fn installed(shell: &str) -> bool {
    Command::new(shell).args(["-c", "true"]).status().is_ok_and(|status| status.success())
}

/// A world whose store knows some keys, and whose directory has the script.
fn world(backend: Backend, shell: &str) -> World {
    let world = World::new(backend);
    for key in ["nightly-report", "nightly-backup", "db:main", "two words", "it's"] {
        world.run(key, &[], "true").run();
    }
    let script = world.dlock(["completions", shell]).any_stdout().run().stdout;
    world.write("_dlock", &script);
    world
}

/// A shell with line editing and the script. Its dlock is a function that prints its arguments; the
/// scripts run the real program.
fn terminal(world: &World, shell: &str, load: &str) -> Terminal {
    let mut terminal = Terminal::open(world);
    terminal.type_line(&format!("LC_ALL=C.UTF-8 TERM=xterm exec {shell}"));
    let function = r#"dlock() { printf '<%s>' "$@"; echo; }"#;
    terminal.press(&format!("{load}; {function}; echo $((40+2))-loaded\n"));
    terminal.expect("42-loaded");
    terminal.expect("READY> ");
    terminal
}

/// Types, presses TAB, runs the line and compares dlock's arguments. On a busy machine dlock may
/// answer too late and the shell gets no keys, so TAB is pressed again.
#[track_caller]
fn completes(terminal: &mut Terminal, typed: &str, arguments: &[&str]) {
    let expected = arguments.iter().map(|argument| format!("<{argument}>")).collect::<String>();
    wait_until(&format!("{typed:?} becomes {expected:?}"), || {
        terminal.press(&format!("{typed}\t\n"));
        let shown = terminal.expect(">\r\n");
        terminal.expect("READY> ");
        shown.ends_with(&format!("{expected}\r\n"))
    });
}

const LINES: [(&str, &[&str]); 10] = [
    ("echo dlock; : ; dlock status nightly-r", &["status", "nightly-report"]),
    ("dlock status nightly-report nightly-b", &["status", "nightly-report", "nightly-backup"]),
    ("dlock status --json nightly-b", &["status", "--json", "nightly-backup"]),
    ("dlock release nightly-r", &["release", "nightly-report"]),
    ("dlock history db:m", &["history", "db:main"]),
    ("dlock run -k nightly-r", &["run", "-k", "nightly-report"]),
    ("dlock run -w 5 --key nightly-b", &["run", "-w", "5", "--key", "nightly-backup"]),
    ("dlock run --key=nightly-b", &["run", "--key=nightly-backup"]),
    ("dlock status tw", &["status", "two words"]),
    ("dlock status it", &["status", "it's"]),
];

on_every_store!(bash_completes_keys, zsh_completes_keys, fish_completes_keys);

fn bash_completes_keys(backend: Backend) {
    let world = world(backend, "bash");
    let mut terminal = terminal(&world, "bash --norc --noprofile", "source ./_dlock");
    for (typed, arguments) in LINES {
        completes(&mut terminal, typed, arguments);
    }
    // An open quote is kept. Options are completed as well.
    completes(&mut terminal, "dlock status 'two w", &["status", "two words"]);
    completes(&mut terminal, "dlock status --js", &["status", "--json"]);
    completes(&mut terminal, "dlock hist", &["history"]);
    completes(&mut terminal, "dlock -q status nightly-r", &["-q", "status", "nightly-report"]);
    completes(&mut terminal, "dlock run -k x -- cat _dl", &["run", "-k", "x", "--", "cat", "_dlock"]);
    // No key is known, and no file is offered in its place.
    completes(&mut terminal, "dlock run -k _dl", &["run", "-k", "_dl"]);
    // The line names another store.
    let store = format!("file:{}", world.path("other").display());
    world.dlock(["run", "-k", "elsewhere", "--store", &store, "--", "true"]).run();
    let typed = format!("dlock status --store {store} els");
    completes(&mut terminal, &typed, &["status", "--store", &store, "elsewhere"]);
    let typed = format!("dlock run --store={store} -k els");
    completes(&mut terminal, &typed, &["run", &format!("--store={store}"), "-k", "elsewhere"]);
    terminal.press("exit\n");
}

fn zsh_completes_keys(backend: Backend) {
    if !installed("zsh") {
        return;
    }
    let world = world(backend, "zsh");
    let load = "PS1='READY> '; autoload -U compinit; compinit -D -u; source ./_dlock";
    let mut terminal = terminal(&world, "zsh -f", load);
    for (typed, arguments) in LINES {
        completes(&mut terminal, typed, arguments);
    }
    let store = format!("file:{}", world.path("other").display());
    world.dlock(["run", "-k", "elsewhere", "--store", &store, "--", "true"]).run();
    completes(&mut terminal, &format!("DLOCK_STORE={store} dlock status els"), &["status", "elsewhere"]);
    terminal.press("exit\n");
}

fn fish_completes_keys(backend: Backend) {
    if !installed("fish") {
        return;
    }
    let world = world(backend, "fish");
    let other = format!("file:{}", world.path("other").display());
    world.dlock(["run", "-k", "elsewhere", "--store", &other, "--", "true"]).run();
    let elsewhere = format!("DLOCK_STORE={other} dlock status els");
    for (typed, candidates) in [
        (elsewhere.as_str(), "elsewhere\n"),
        ("dlock status nightly-r", "nightly-report\n"),
        ("dlock release nightly-", "nightly-backup\nnightly-report\n"),
        ("dlock history db:", "db:main\n"),
        ("dlock run -k nightly-b", "nightly-backup\n"),
        ("dlock run --key nightly-b", "nightly-backup\n"),
        ("dlock run --key=nightly-b", "--key=nightly-backup\n"),
        ("dlock status tw", "two words\n"),
    ] {
        let mut fish = world.command("fish");
        let bin = std::path::Path::new(BINARY).parent().expect("a directory").display();
        fish.args(["--no-config", "-c", "source ./_dlock; complete -C $TYPED"]).env("TYPED", typed);
        fish.env("DLOCK_STORE", world.url()).env("PATH", format!("{bin}:/usr/bin:/bin"));
        wait_until(&format!("fish offers {candidates:?} for {typed}"), || {
            let output = fish.output().expect("fish");
            assert!(output.stderr.is_empty(), "{output:?}");
            String::from_utf8_lossy(&output.stdout) == candidates
        });
    }
}

/// Whatever is wrong with the store, the scripts get an answer in time, and no message is printed.
#[test]
fn a_store_that_does_not_answer_has_no_keys() {
    let world = world(Backend::Redis, "bash");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("redis://{}", silent.local_addr().expect("an address"));
    let missing = format!("file:{}", world.path("missing").display());
    for store in [&silent, "redis://127.0.0.1:1", &missing, "nonsense", "redis://192.0.2.1:6379"] {
        let line = format!("dlock status --store {store} ");
        // A tenth of a second is left for the shell, ten times that for slow machines. A timeout of
        // dlock itself would take longer.
        world
            .dlock(["complete-keys", "bash", &line, ""])
            .env("DLOCK_OP_TIMEOUT", "1m")
            .under(&["timeout", "3"])
            .run();
    }
    assert!(!world.path("missing").exists(), "TAB makes no store");
    world.redis().pause();
    world.dlock(["complete-keys", "bash", "dlock status ", ""]).under(&["timeout", "3"]).run();
    world.redis().resume();
    let all = "db:main\nit\\'s\nnightly-backup\nnightly-report\ntwo\\ words\n";
    wait_until("all keys are offered", || {
        world.dlock(["complete-keys", "bash", "dlock status ", ""]).any_stdout().run().stdout == all
    });
    // dlock cannot know what the shell would expand.
    world.dlock(["complete-keys", "bash", "dlock status --store $STORE ", ""]).run();
    world.dlock(["complete-keys", "bash", "dlock status --js", "--js"]).status(1).run();
}
