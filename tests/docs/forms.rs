//! A script that takes a lock for itself stops if it has no lock, whatever became of dlock. The lines
//! of all pages, help texts and man pages that take or renew a lock in a shell are run here, with a
//! further line after them that must not be reached.

use crate::support::dlock::{BINARY, Running};
use crate::support::proc;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use dlock::cli::Cli;
use regex_lite::Regex;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A line of a page that takes or renews a lock for the script that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    place: String,
    /// What a script would have, complete.
    text: String,
    key: String,
}

/// How a page shows what is meant for a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Blocks between fences, and text in backticks.
    Markdown,
    /// Indented lines, as in a help text.
    Indented,
    /// Any line.
    Plain,
}

impl Form {
    /// What a shell makes of the form: dlock's own arguments, names of files and comments do not
    /// matter.
    fn shape(&self) -> String {
        let arguments = Regex::new("(dlock [a-z]+)[^)|;>]*|(>)[^)|;]*|( #).*").expect("a pattern");
        arguments.replace_all(&self.text, "$1$2$3").into()
    }

    /// The form is for a process that is no script, which it stops.
    fn is_for_a_daemon(&self) -> bool {
        self.text.contains("|| kill ")
    }

    /// The form with an option for the wait, or without.
    fn waiting(&self, waits: bool) -> String {
        let text = self.text.replace(" -w 10m ", " ").replace(" -w ", " ");
        if waits { text.replacen(" -k ", " -w -k ", 1) } else { text }
    }
}

/// The forms of a page.
fn forms_of(page: &str, text: &str, kind: Kind) -> Vec<Form> {
    let takes = Regex::new(
        r"(?:^|[;&|(] *|\$\(|(?:^| )(?:if|while|until|then|do|exec|sudo|eval|!) )(?:[A-Z_]+= )?(?:/usr/bin/)?dlock (?:hold|acquire|renew) ",
    );
    let takes = takes.expect("a pattern");
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().collect::<Vec<_>>();
    let (mut forms, mut is_code) = (Vec::new(), kind == Kind::Plain);
    for (number, line) in lines.iter().enumerate() {
        if kind == Kind::Markdown && line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        is_code = if kind == Kind::Indented { line.starts_with("  ") } else { is_code };
        let whole = if is_code || kind != Kind::Markdown { vec![*line] } else { Vec::new() };
        let spans = line.split('`').skip(1).step_by(2).filter(|_| whole.is_empty());
        for code in whole.iter().copied().chain(spans) {
            let code = ["- ", "run: ", "$ ", "# ", "#"].into_iter().fold(code.trim(), |code, sign| {
                if code.contains("dlock ") { code.strip_prefix(sign).unwrap_or(code) } else { code }
            });
            let code = code.trim_start_matches("Usage: ");
            let is_for_a_script =
                code.contains("$(") || code.contains("--background") || code.contains("--export");
            // A program reads the JSON. A synopsis, and a command that a sentence names, are not for a script.
            let is_named = (!is_code || code.contains('[')) && !is_for_a_script;
            if !takes.is_match(code) || code.contains("--json") || is_named {
                continue;
            }
            let mut text = Regex::new(r" ?\[[^]]*\]").expect("a pattern").replace_all(code, "").into_owned();
            if text.contains("=$(") && !text.contains("eval ") {
                text = format!("{text}\n{}", lines.get(number + 1).map_or("", |next| next.trim()));
            }
            if text.contains("\"$pid\"") {
                text = format!("{}\n{text}", number.checked_sub(1).map_or("", |at| lines[at].trim()));
            }
            let text = ["/run/", "/var/lib/"].iter().fold(text, |text, place| text.replace(place, ""));
            let mut words = text.split([' ', ')']).skip_while(|word| !["-k", "renew"].contains(word));
            let key = words.nth(1).unwrap_or_default().to_owned();
            forms.push(Form { place: format!("{page}:{}", number + 1), text, key });
        }
    }
    forms
}

/// Every form that there is to read.
fn forms() -> Vec<Form> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = |folder: &str, end: &str| {
        let entries = fs::read_dir(root.join(folder)).expect("a folder").flatten().map(|entry| entry.path());
        let (end, named) = (end.to_owned(), |path: &PathBuf| path.display().to_string());
        entries.filter(move |path| path.is_file() && named(path).ends_with(&end)).collect::<Vec<_>>()
    };
    let pages = [below("", ".md"), below("docs", ".md")].concat();
    let pages = pages.into_iter().map(|path| (path, Kind::Markdown));
    let files = [below("packaging", ""), below("man", ""), vec![root.join("src/cli/man.txt")]].concat();
    let files = files.into_iter().map(|path| (path, Kind::Plain));
    let read = |(path, kind): (PathBuf, Kind)| {
        let text = fs::read_to_string(&path).expect("a text");
        let text = text.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\&", "").replace("\\e", "\\");
        (path.strip_prefix(root).expect("it is below").display().to_string(), text, kind)
    };
    let help = |command: &mut clap::Command| {
        let text = command.render_long_help().to_string();
        (format!("dlock {} --help", command.get_name()), text, Kind::Indented)
    };
    let mut cli = Cli::command();
    cli.build();
    let helps = cli.get_subcommands_mut().map(help).collect::<Vec<_>>();
    let all = pages.chain(files).map(read).chain(helps);
    all.flat_map(|(page, text, kind)| forms_of(&page, &text, kind)).collect()
}

/// One form of each shape.
fn shapes() -> Vec<Form> {
    one_of_each(forms(), Form::shape)
}

fn one_of_each(forms: Vec<Form>, what: impl Fn(&Form) -> String) -> Vec<Form> {
    let mut known = BTreeSet::new();
    forms.into_iter().filter(|form| known.insert(what(form))).collect()
}

/// What runs a script.
#[derive(Debug, Clone, Copy)]
enum Runner {
    Shell(&'static [&'static str]),
    /// GitLab's runner: `: | eval '…'`, and with FF_USE_NEW_BASH_EVAL_STRATEGY `: | (eval '…')`.
    GitLab(&'static str, [&'static str; 2]),
}

impl Runner {
    /// Those that are here.
    fn all() -> Vec<Self> {
        let shells: [&[&str]; 4] = [&["sh"], &["bash"], &["zsh"], &["busybox", "sh"]];
        let is_here =
            |shell: &&[&str]| Command::new(shell[0]).args(&shell[1..]).args(["-c", ":"]).output().is_ok();
        let shells = shells.into_iter().filter(is_here).map(Runner::Shell);
        shells.chain([Self::GitLab("bash", ["", ""]), Self::GitLab("sh", ["(", ")"])]).collect()
    }

    /// The script that this runner makes of the lines of a job. `before` is for the test.
    fn script(self, before: &str, job: &str) -> String {
        match self {
            Self::Shell(_) => format!("{before}\n{job}"),
            Self::GitLab(_, [open, close]) => {
                let job = job.replace('\'', "'\\''");
                format!(
                    "trap exit 1 TERM\n\nif set -o | grep pipefail > /dev/null; then set -o pipefail; fi; set -o errexit\n\
                     set +o noclobber\n{before}\n: | {open}eval '{job}'{close}\nexit 0\n"
                )
            }
        }
    }

    /// Starts the script. Its parent is a process that the form may name as $PPID.
    fn start(self, world: &World, path: &Path, text: &str) -> Child {
        world.write("log", "");
        world.write("script", text);
        let mut command = world.command("sh");
        command.args(["-c", "\"$@\"; exit $?", "sh"]);
        match self {
            Self::Shell(shell) => command.args(shell),
            Self::GitLab(shell, _) => command.arg(shell),
        };
        command.arg("script").env("PATH", path).env("DLOCK_STORE", world.url()).env("DLOCK", BINARY);
        command.env("GITHUB_ENV", world.path("github_env")).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(world.path("messages")).expect("a file")).spawn().expect("sh")
    }
}

/// Every form on every runner. A form for a daemon stops the process in the file, here the script; in
/// GitLab's way the script is more than one process.
fn everywhere(test: impl Fn(&Form, Runner)) {
    for (form, runner) in
        shapes().iter().flat_map(|form| Runner::all().into_iter().map(move |runner| (form, runner)))
    {
        if !(form.is_for_a_daemon() && matches!(runner, Runner::GitLab(..))) {
            test(form, runner);
        }
    }
}

/// A world with dlock in `bin`, which cannot be executed in `locked`, and is not in `none`. All three
/// have the shells, and the programs that the forms call.
fn world() -> World {
    let world = World::without_redis();
    for place in ["bin", "locked", "none"] {
        fs::create_dir(world.path(place)).expect("a directory");
        for program in ["sh", "bash", "zsh", "busybox", "cat", "grep", "sleep"] {
            let here = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program));
            if let Some(here) = here.iter().find(|path| path.exists()) {
                symlink(here, world.path(place).join(program)).expect("a link");
            }
        }
    }
    symlink(BINARY, world.path("bin/dlock")).expect("a link");
    world.write("locked/dlock", "#!/bin/sh\n");
    world
}

/// What stands before a form: a hold to renew, and the process that a form names.
fn before(form: &Form) -> String {
    let taken = match form.text.contains("dlock renew ") {
        true if form.text.contains("--token-file") => {
            format!("\"$DLOCK\" acquire -q -k {} > token\n", form.key)
        }
        true => format!("held=$(\"$DLOCK\" acquire -q --export -k {}) || exit; eval \"$held\"\n", form.key),
        false => String::new(),
    };
    let taken = if taken.is_empty() { taken } else { format!("{taken}: > taken\n") };
    format!("{taken}echo $$ > daemon.pid\n")
}

/// Expects that a script does not reach the line after the form.
fn stops(world: &World, form: &Form, runner: Runner, mut script: Child) {
    let status = script.wait().expect("our child");
    let (place, text) = (&form.place, &form.text);
    let said = world.read("messages");
    assert!(
        world.read("log").is_empty() && !status.success(),
        "{place}: {text}\n{runner:?} {status}\n{said}"
    );
}

/// Each form stops its script after this, which comes before it.
fn stops_after(fault: &str, form_of: impl Fn(&Form) -> String) {
    let world = world();
    everywhere(|form, runner| {
        let before = format!("{}{}", before(form), fault.replace("KEY", &form.key));
        let text = runner.script(&before, &format!("{}\necho went on >> log\n", form_of(form)));
        stops(&world, form, runner, runner.start(&world, &world.path("bin"), &text));
        if world.path("taken").exists() {
            world.dlock(["release", &form.key, "--force", "--now", "-y"]).any_stderr().run();
            fs::remove_file(world.path("taken")).expect("a file");
        }
    });
}

#[test]
fn no_script_goes_on_if_dlock_is_not_installed() {
    stops_after("PATH=$PWD/none", |form| form.text.clone());
}

#[test]
fn no_script_goes_on_if_dlock_cannot_be_executed() {
    stops_after("PATH=$PWD/locked", |form| form.text.clone());
}

#[test]
fn no_script_goes_on_after_a_typo() {
    let command = |form: &Form| form.text.replacen("dlock ", "dlock x", 1);
    let option =
        |form: &Form| form.text.replace(" -k ", " --kye ").replace("dlock renew ", "dlock renew --kye ");
    stops_after("", command);
    stops_after("", option);
}

#[test]
fn no_script_goes_on_without_a_store_or_with_a_wrong_configuration() {
    // DLOCK_HELD names the store of a hold.
    stops_after("export DLOCK_STORE=redis://127.0.0.1:1; unset DLOCK_HELD", |form| form.waiting(false));
    stops_after("export DLOCK_CONFIG=no/such/file", |form| form.text.clone());
}

#[test]
fn no_script_goes_on_if_the_lock_is_busy() {
    let other = ": > taken; \"$DLOCK\" release KEY --force --now -y; \"$DLOCK\" acquire -q -k KEY > other";
    stops_after(&format!("{{ {other}; }} 2> /dev/null"), |form| form.waiting(false));
}

/// Starts a run that holds the keys of all forms.
fn hold_all(world: &World) -> Running {
    let keys = forms().into_iter().flat_map(|form| ["-k".to_owned(), form.key]);
    let holder =
        world.dlock(["run", "-q"]).args(keys).args(["--", "sh", "-c", "echo up > up; exec sleep 1000"]);
    let holder = holder.any_stderr().spawn();
    wait_until("they are held", || world.path("up").exists());
    holder
}

/// The processes of a script that run dlock; the first is the one that the shell started.
fn dlocks(script: &Child) -> Vec<i32> {
    let script = i32::try_from(script.id()).expect("a process id");
    let is_ours = |pid: &i32| proc::is_below(*pid, script) && proc::name(*pid) == "dlock";
    let mut found = proc::pids().into_iter().filter(is_ours).collect::<Vec<_>>();
    let all = found.clone();
    found.sort_by_key(|pid| all.iter().any(|other| proc::is_below(*pid, *other)));
    found
}

/// Each form stops its script if this signal ends its dlock while it waits: the one that the shell
/// started, or every process of it.
fn stops_on(signal: Signal, reaches_all: bool) {
    let world = world();
    let _holder = hold_all(&world);
    everywhere(|form, runner| {
        if form.text.contains("dlock renew ") {
            return;
        }
        let text = runner.script(&before(form), &format!("{}\necho went on >> log\n", form.waiting(true)));
        let script = runner.start(&world, &world.path("bin"), &text);
        world.wait_for_waiters(&form.key, 1);
        let dlocks = dlocks(&script);
        let reached = if reaches_all { &dlocks[..] } else { &dlocks[..1] };
        reached.iter().for_each(|pid| proc::signal(*pid, signal));
        stops(&world, form, runner, script);
        wait_until("nobody waits", || world.waiters(&form.key) == 0);
    });
}

#[test]
fn no_script_goes_on_if_term_ends_a_waiting_dlock() {
    stops_on(Signal::TERM, false);
}

#[test]
fn no_script_goes_on_if_int_ends_a_waiting_dlock() {
    stops_on(Signal::INT, false);
}

#[test]
fn no_script_goes_on_if_hup_ends_a_waiting_dlock() {
    stops_on(Signal::HUP, true);
}

#[test]
fn no_script_goes_on_if_a_waiting_dlock_is_killed() {
    stops_on(Signal::KILL, false);
    stops_on(Signal::KILL, true);
}

/// `renew` does not wait for a lock, but for a server.
#[test]
fn no_script_goes_on_if_a_signal_ends_a_renewal() {
    let mut world = World::with_redis(&[]);
    let mut renewals = 0;
    for (form, signal) in shapes()
        .iter()
        .filter(|form| form.text.contains("dlock renew "))
        .flat_map(|form| [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL].map(|signal| (form, signal)))
    {
        let text = format!("{}echo held >> held; until [ -e go ]; do sleep 0.1; done\n", before(form));
        let text = format!("export DLOCK_OP_TIMEOUT=10m\n{text}{}\necho went on >> log\n", form.text);
        let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
        let runner = Runner::Shell(&["sh"]);
        let script = runner.start(&world, Path::new(&format!("{bin}:/usr/bin:/bin")), &text);
        wait_until("it has a hold", || !world.read("held").is_empty());
        world.redis().pause();
        world.write("go", "");
        let dlock = wait_for("a renewal", || dlocks(&script).first().copied());
        proc::signal(dlock, signal);
        stops(&world, form, runner, script);
        world.redis().resume();
        world.redis_mut().restart();
        ["held", "go"].iter().for_each(|file| fs::remove_file(world.path(file)).expect("a file"));
        renewals += 1;
    }
    assert!(renewals >= 8, "{renewals} renewals");
}

/// Every form, and not one of each shape only, goes on if it gets the lock.
#[test]
fn a_script_goes_on_with_the_lock() {
    let forms = forms();
    let pages =
        ["docs/hold.md", "docs/use.md", "docs/recipes.md", "dlock hold --help", "dlock acquire --help"];
    for page in pages {
        assert!(forms.iter().any(|form| form.place.starts_with(page)), "no form in {page}: {forms:#?}");
    }
    for form in &one_of_each(forms, |form| form.text.clone()) {
        let world = world();
        let job =
            format!("{}\necho went on >> log; until [ -e go ]; do sleep 0.1; done\n", form.waiting(false));
        for runner in Runner::all() {
            let mut script = runner.start(&world, &world.path("bin"), &runner.script(&before(form), &job));
            wait_until(&format!("{form:?}"), || {
                assert_eq!(
                    script.try_wait().expect("our child"),
                    None,
                    "{form:?}: {}",
                    world.read("messages")
                );
                world.read("log") == "went on\n"
            });
            assert_eq!(world.state(&form.key), "held", "{form:?}");
            world.write("go", "");
            assert!(script.wait().expect("our child").success(), "{form:?}");
            fs::remove_file(world.path("go")).expect("a file");
            world.dlock(["release", &form.key, "--force", "--now", "-y"]).any_stderr().run();
        }
    }
}

/// An open form in a page, a help text or any other file would be found, and would go on.
#[test]
fn a_form_that_goes_on_is_found() {
    let page = "Text: `dlock hold -k KEY` and `dlock acquire` are commands, `dlock hold -k k --json` is read.\n\
        Use `dlock hold -k a --pid $$ --background`.\n```sh\neval \"$(dlock hold -k b --pid $$ --background --export)\" || exit\n\
        local lock=$(dlock acquire -k c --export) || exit; eval \"$lock\"\ndlock acquire -k d > token\n```\n```yaml\n  script:\n\
        - dlock hold -k e --pid $$ \\\n    --background\n- run: dlock renew f\n- if dlock acquire -k g > token; then :; fi\n```\n";
    let found = forms_of("page", page, Kind::Markdown);
    let keys = found.iter().map(|form| form.key.as_str()).collect::<Vec<_>>();
    assert_eq!(keys, ["a", "b", "c", "d", "e", "f", "g"]);
    let world = world();
    for form in found {
        let job = format!("f() {{\n{}\n}}; f\necho went on >> log\n", form.text);
        let mut script = Runner::Shell(&["bash"]).start(&world, &world.path("none"), &job);
        script.wait().expect("our child");
        assert_eq!(world.read("log"), "went on\n", "{form:?}");
    }
    let help = "Usage: dlock hold -k KEY [OPTIONS]\n       dlock hold -k h --background [OPTIONS]\n\nExamples:\n  dlock acquire -k i > token\n";
    let found = forms_of("help", help, Kind::Indented);
    assert_eq!(found.iter().map(|form| form.key.as_str()).collect::<Vec<_>>(), ["h", "i"]);
}
