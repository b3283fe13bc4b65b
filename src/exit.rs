//! Which exit status means what? The one table; every command ends through it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How dlock ends. The numbers are those of sysexits.h where it has one, of timeout(1) and the shell elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did what it was asked.
    Ok,
    /// 1: the command did what it was asked, and the answer is no: `doctor --strict` found what it warns of.
    No,
    /// 64: the command line makes no sense.
    Usage,
    /// 69: the store cannot be reached, or refused to serve.
    Unavailable,
    /// 70: a fault of dlock's own.
    Internal,
    /// 74: output could not be written.
    Output,
    /// 75, or what `--busy-exit-code` says: the lock was not obtained.
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
    /// The signal the job died of; dlock dies of the same.
    Signal(i32),
}

/// `--on-lost`: what becomes of a job whose lock is lost. It is stopped in any case when dlock is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop it
    Stop,
    /// Let it run on, warn, and exit 79 when it has ended
    Warn,
}

/// How a command ended. The log of a lock keeps it in these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    #[serde(rename = "status")]
    Code(u8),
    /// Of this signal; it may be any, real-time ones too.
    #[serde(rename = "signal")]
    Signal(i32),
}

impl Ended {
    /// Reads a raw wait status; `None` if it is not that of an end.
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

    /// The status a shell sees; for [`Exit::Signal`] 128 + the signal's number.
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
    fn a_raw_status_is_read() {
        assert_eq!(Ended::of(0), Some(Ended::Code(0)));
        assert_eq!(Ended::of(255 << 8), Some(Ended::Code(255)));
        assert_eq!(Ended::of(9), Some(Ended::Signal(9)));
        assert_eq!(Ended::of(64), Some(Ended::Signal(64)));
        assert_eq!(Ended::of(0x80 | 11), Some(Ended::Signal(11)));
        assert_eq!(Ended::of(20 << 8 | 0x7f), None);
        assert_eq!(Ended::of(0xffff), None);
    }
}
