//! dlock as a program: arguments, variables and standard input in; standard output, messages and
//! status out. The default expectation is no output, no message, and status 0.

use super::proc;
use super::wait::{PATIENCE, wait_for};
use super::world::World;
use regex_lite::Regex;
use rustix::process::{Signal, getegid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_dlock");

/// A call of dlock that has not started yet.
pub struct Dlock<'w> {
    world: &'w World,
    wrapper: Vec<OsString>,
    args: Vec<OsString>,
    variables: Vec<(String, Option<OsString>)>,
    stdin: Option<String>,
    forked: bool,
    expected: Expected,
}

/// How a call is to end.
#[derive(Debug, Clone)]
struct Expected {
    stdout: Text,
    stderr: Text,
    end: End,
}

#[derive(Debug, Clone)]
enum Text {
    Exactly(String),
    Like(String),
    Any,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Status(i32),
    Signal(i32),
}

/// What a call left behind.
#[derive(Debug)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub status: ExitStatus,
}

impl Output {
    /// How the process ended.
    pub fn end(&self) -> End {
        end(self.status)
    }
}

impl<'w> Dlock<'w> {
    pub(super) fn new<I: IntoIterator<Item: AsRef<OsStr>>>(world: &'w World, args: I) -> Self {
        let silent = Text::Exactly(String::new());
        Self {
            world,
            wrapper: Vec::new(),
            args: args.into_iter().map(|arg| arg.as_ref().to_owned()).collect(),
            variables: Vec::new(),
            stdin: None,
            forked: false,
            expected: Expected { stdout: silent.clone(), stderr: silent, end: End::Status(0) },
        }
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Another program starts dlock: its words come before `dlock …`, and it is expected to exec.
    pub fn under(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(OsString::from).collect();
        self
    }

    /// The shell does something, such as closing a descriptor, before it execs dlock.
    pub fn after_shell(self, preparation: &str) -> Self {
        self.under(&["sh", "-c", &format!("{preparation}\nexec \"$@\""), "sh"])
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Unsets a variable.
    pub fn env_remove(mut self, name: &str) -> Self {
        self.variables.push((name.to_owned(), None));
        self
    }

    /// What standard input holds; without this it is /dev/null.
    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    /// Starts it with signals 32 and 33 at their default, too. posix_spawn leaves both ignored. The standard library's
    /// other way, by which a group is set, is fork and exec: it copies the page tables of the whole suite.
    pub fn with_all_signals(mut self) -> Self {
        self.forked = true;
        self
    }

    /// Expects this standard output.
    pub fn stdout(mut self, text: &str) -> Self {
        self.expected.stdout = Text::Exactly(text.to_owned());
        self
    }

    /// Expects standard output that matches a pattern from its begin to its end.
    pub fn stdout_like(mut self, pattern: &str) -> Self {
        self.expected.stdout = Text::Like(pattern.to_owned());
        self
    }

    /// Does not check standard output.
    pub fn any_stdout(mut self) -> Self {
        self.expected.stdout = Text::Any;
        self
    }

    /// Expects messages that match a pattern from begin to end; `.` matches every character but a newline.
    pub fn stderr_like(mut self, pattern: &str) -> Self {
        self.expected.stderr = Text::Like(pattern.to_owned());
        self
    }

    /// Does not check the messages.
    pub fn any_stderr(mut self) -> Self {
        self.expected.stderr = Text::Any;
        self
    }

    /// Expects this exit status.
    pub fn status(mut self, status: i32) -> Self {
        self.expected.end = End::Status(status);
        self
    }

    /// Expects death by this signal.
    pub fn dies_of(mut self, signal: i32) -> Self {
        self.expected.end = End::Signal(signal);
        self
    }

    /// Runs to the end and compares.
    #[track_caller]
    pub fn run(self) -> Output {
        self.spawn().finish()
    }

    /// Starts it.
    #[track_caller]
    pub fn spawn(self) -> Running {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let files = self.world.path(&format!(".call{}", CALLS.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&files).expect("a directory for what is printed");
        let mut words = self.wrapper;
        words.push(BINARY.into());
        words.extend(self.args);
        // A session of its own: no terminal, wherever the suite is run, and no signal that a test sends to a group
        // can reach the suite. A child that leads no group becomes the leader, and keeps its process id.
        let mut command = self.world.command("setsid");
        command.args(&words);
        if self.forked {
            command.gid(getegid().as_raw());
        }
        for (name, value) in self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        match self.stdin {
            None => command.stdin(Stdio::null()),
            Some(text) => {
                fs::write(files.join("stdin"), text).expect("a file for standard input");
                command.stdin(File::open(files.join("stdin")).expect("standard input"))
            }
        };
        // Files, not pipes: a process that outlives the job would keep a pipe open, and a full pipe
        // would stop dlock.
        let file = |name| File::create(files.join(name)).expect("a file for what is printed");
        command.stdout(file("stdout")).stderr(file("stderr"));
        let words = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let child = command.spawn().unwrap_or_else(|error| panic!("{words}: {error}"));
        Running { words, child, files, expected: self.expected, status: None }
    }
}

/// A call that has begun. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    words: String,
    child: Child,
    files: PathBuf,
    expected: Expected,
    status: Option<ExitStatus>,
}

impl Running {
    /// The process id of dlock.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// The process id of dlock's guard.
    #[track_caller]
    pub fn guard(&self) -> i32 {
        let what = format!("a guard under {}", self.words);
        wait_for(&what, || {
            proc::children(self.pid()).into_iter().find(|pid| proc::name(*pid) == "dlock-guard")
        })
    }

    /// Sends dlock a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid(), signal);
    }

    /// What it has printed on standard error so far.
    pub fn messages(&self) -> String {
        self.read("stderr")
    }

    /// What it has printed on standard output so far.
    pub fn printed(&self) -> String {
        self.read("stdout")
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("dlock is our child");
        }
        self.status.is_some()
    }

    /// Waits for the end and compares nothing.
    #[track_caller]
    pub fn output(self) -> Output {
        self.output_within(PATIENCE)
    }

    /// The same with another time limit.
    #[track_caller]
    pub fn output_within(mut self, limit: Duration) -> Output {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            let words = &self.words;
            assert!(Instant::now() < deadline, "{words}: still running\nstderr: {}", self.messages());
            sleep(Duration::from_millis(2));
        }
        let status = self.status.expect("it has ended");
        Output { stdout: self.read("stdout"), stderr: self.read("stderr"), status }
    }

    /// Waits for the end and compares it with what is expected.
    #[track_caller]
    pub fn finish(self) -> Output {
        self.finish_within(PATIENCE)
    }

    /// The same with another time limit.
    #[track_caller]
    pub fn finish_within(self, limit: Duration) -> Output {
        let (words, expected) = (self.words.clone(), self.expected.clone());
        let output = self.output_within(limit);
        let end = end(output.status);
        assert_eq!(
            end, expected.end,
            "how it ended: {words}\nstdout: {}\nstderr: {}",
            output.stdout, output.stderr
        );
        compare("stdout", &words, &expected.stdout, &output.stdout);
        let is_slowness = |line: &&str| {
            line.contains("no answer in time") && line.contains("trying again")
                || line.ends_with("answers again\n")
        };
        // On a busy machine a server may take long to answer; with -q dlock never says so.
        let looked_at = |line: &&str| words.contains(" -q ") || !is_slowness(line);
        let messages: String = output.stderr.split_inclusive('\n').filter(looked_at).collect();
        compare("stderr", &words, &expected.stderr, &messages);
        output
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.files.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Waits for the end of each, and compares it with what is expected.
#[track_caller]
pub fn finish_all(running: impl IntoIterator<Item = Running>) {
    for one in running {
        one.finish();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn end(status: ExitStatus) -> End {
    match status.signal() {
        Some(signal) => End::Signal(signal),
        None => End::Status(status.code().expect("a process exits or dies of a signal")),
    }
}

#[track_caller]
fn compare(what: &str, words: &str, expected: &Text, actual: &str) {
    match expected {
        Text::Exactly(text) => assert_eq!(actual, text, "{what} of {words}"),
        Text::Like(pattern) => {
            let whole = Regex::new(&format!("^(?:{pattern})$")).expect("a pattern");
            assert!(whole.is_match(actual), "{what} of {words}\nis: {actual}\nand not like: {pattern}");
        }
        Text::Any => {}
    }
}
