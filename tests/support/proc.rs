//! What the kernel says of a process, read from /proc as any other observer could.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

/// Whether the process runs, sleeps or is stopped. A zombie is dead: it can do nothing.
pub fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether the process can still do something: it is alive and no SIGKILL is pending. After SIGKILL
/// it does nothing more, however long it waits for a processor to end on.
pub fn acts(pid: i32) -> bool {
    let killed = |line: &str| {
        let pending = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(pending.trim(), 16)
            .ok()
            .filter(|pending| pending & 1 << (Signal::KILL.as_raw() - 1) != 0)
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    alive(pid) && !status.lines().any(|line| killed(line).is_some())
}

/// Whether the process is stopped by a signal.
pub fn stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

/// Whether the process runs before all that have an ordinary priority (SCHED_RR).
pub fn is_real_time(pid: i32) -> bool {
    // Counted from the state.
    fields(pid).is_some_and(|fields| fields.split(' ').nth(38) == Some("2"))
}

/// Whether the process's group is the one that its terminal belongs to.
pub fn in_foreground(pid: i32) -> bool {
    let Some(fields) = fields(pid) else { return false };
    let field = |at: usize| fields.split(' ').nth(at).map(str::to_owned);
    // Counted from the state: parent, group, session, terminal, the terminal's group.
    field(2).is_some() && field(2) == field(5)
}

/// The children of a process.
pub fn children(parent: i32) -> Vec<i32> {
    pids().into_iter().filter(|pid| stat(*pid).is_some_and(|(_, ppid)| ppid == parent)).collect()
}

/// Whether one process descends from another.
pub fn is_below(pid: i32, ancestor: i32) -> bool {
    pid == ancestor || stat(pid).is_some_and(|(_, parent)| parent > 1 && is_below(parent, ancestor))
}

/// The process's own name, as `ps` shows it without arguments.
pub fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The arguments, joined by spaces.
pub fn arguments(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The ids of all processes.
pub fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the suite itself was started with this signal ignored.
pub fn suite_ignores(signal: i32) -> bool {
    has_in_mask("self", "SigIgn:", signal)
}

/// Whether the process blocks this signal, as dlock does before it reads signals one by one.
pub fn blocks(pid: i32, signal: i32) -> bool {
    has_in_mask(&pid.to_string(), "SigBlk:", signal)
}

/// Whether the process has a handler for this signal.
pub fn catches(pid: i32, signal: i32) -> bool {
    has_in_mask(&pid.to_string(), "SigCgt:", signal)
}

/// Whether the process has not yet read this signal.
pub fn awaits(pid: i32, signal: i32) -> bool {
    has_in_mask(&pid.to_string(), "ShdPnd:", signal)
}

fn has_in_mask(process: &str, mask: &str, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process is there");
    let signals = status.lines().find_map(|line| line.strip_prefix(mask)).expect("a mask");
    u64::from_str_radix(signals.trim(), 16).expect("a mask") >> (signal - 1) & 1 == 1
}

/// Sends a signal; a process that has ended is no error.
pub fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).filter(|pid| !pid.is_init()).expect("a process id");
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("{signal:?} to {pid:?}: {error}"),
    }
}

/// The most memory that the process has had at once, in KiB.
pub fn peak_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.and_then(|peak| peak.trim().parse().ok()).expect("it has not ended")
}

/// Whether this text is in the environment that the process was started with. The environment of
/// some has gigabytes.
pub fn has_in_environment(pid: i32, text: &[u8]) -> bool {
    let mut environment = Vec::new();
    // A process that has ended has no environment.
    let _ = File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(1 << 20).read_to_end(&mut environment));
    environment.windows(text.len()).any(|window| window == text)
}

/// Kills every process with this directory in its environment, except this process.
pub fn kill_inhabitants(home: &Path) {
    let home = home.as_os_str().as_encoded_bytes();
    let ours = i32::try_from(std::process::id()).expect("a process id");
    for pid in pids().into_iter().filter(|pid| *pid != ours) {
        if has_in_environment(pid, home) {
            signal(pid, Signal::KILL);
        }
    }
}

fn state(pid: i32) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// State and parent.
fn stat(pid: i32) -> Option<(char, i32)> {
    let fields = fields(pid)?;
    let mut fields = fields.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The fields after the name. The name is in parentheses and may itself contain parentheses and
/// spaces.
fn fields(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}
