//! The exit statuses. Every command ends through this table.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How dlock ends. The numbers are from sysexits.h where it has one, else from timeout(1) and the
/// shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did what it was asked.
    Ok,
    /// 1: the command worked, and the answer is no: `doctor --strict` found a warning.
    No,
    /// 64: the command line makes no sense.
    Usage,
    /// 69: the store cannot be reached, or refused to serve.
    Unavailable,
    /// 70: an internal error.
    Internal,
    /// 74: output could not be written.
    Output,
    /// 75, or the value of `--busy-exit-code`: the lock was not obtained.
    Busy(u8),
    /// 77: authentication failed or a right is missing.
    Denied,
    /// 78: a configuration file, variable or URL is invalid.
    Config,
    /// 79: the lock was lost, or is not held.
    Lost,
    /// 124: `--max-run` stopped the job.
    TimedOut,
    /// 126: the command exists and cannot be executed.
    CannotExecute,
    /// 127: the command was not found.
    NotFound,
    /// The status the job exited with.
    Job(u8),
    /// The signal that killed the job; dlock dies of the same.
    Signal(i32),
}

/// `--on-lost`: what happens to a job whose lock is lost. If dlock is gone, the job is stopped in
/// any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop it
    Stop,
    /// Let it run on, warn, and exit 79 when it has ended
    Warn,
}

/// How a command ended. Also the format in a lock's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    #[serde(rename = "status")]
    Code(u8),
    /// It died of this signal, which may be a real-time signal.
    #[serde(rename = "signal")]
    Signal(i32),
}

impl Ended {
    /// Decodes a raw wait status; `None` if the process has not ended.
    pub fn of(raw: i32) -> Option<Self> {
        match raw & 0x7f {
            0 => Some(Self::Code(u8::try_from(raw >> 8 & 0xff).unwrap_or(u8::MAX))),
            0x7f => None,
            signal => Some(Self::Signal(signal)),
        }
    }
}

impl Exit {
    /// The default of `--busy-exit-code`.
    pub const BUSY: u8 = 75;

    /// The status that a shell sees; for [`Exit::Signal`] 128 + the signal's number.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::No => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::Output => 74,
            Self::Busy(code) | Self::Job(code) => code,
            Self::Denied => 77,
            Self::Config => 78,
            Self::Lost => 79,
            Self::TimedOut => 124,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => 128u8.wrapping_add(u8::try_from(signal).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_wait_status_is_decoded() {
        assert_eq!(Ended::of(0), Some(Ended::Code(0)));
        assert_eq!(Ended::of(255 << 8), Some(Ended::Code(255)));
        assert_eq!(Ended::of(9), Some(Ended::Signal(9)));
        assert_eq!(Ended::of(64), Some(Ended::Signal(64)));
        assert_eq!(Ended::of(0x80 | 11), Some(Ended::Signal(11)));
        assert_eq!(Ended::of(20 << 8 | 0x7f), None);
        assert_eq!(Ended::of(0xffff), None);
    }
}
