//! Writes the file of `--report`. Whether it can be written is checked before the lock is asked
//! for. It is written at the end, however the run ended, but not if dlock is killed with KILL.

use super::report::RunReport;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Key, Token};
use crate::output::{Kind, Printer, What, json};
use crate::sys::named_file;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct ReportFile(PathBuf);

impl ReportFile {
    /// Checks that a report can be written there, before the run waits for a lock.
    pub fn find(path: &Path) -> Result<Self, Error> {
        match named_file::can_be_replaced(path) {
            Ok(()) => Ok(Self(path.into())),
            Err(why) => Err(Error::Config(format!("no report can be written to {}: {why}", path.display()))),
        }
    }

    /// Writes the report of a finished run. If that fails, the run's status does not change.
    pub fn write(&self, report: &RunReport, keys: &[Key], result: &anyhow::Result<Exit>, printer: &Printer) {
        let text = json::line(&report.finished(keys, result)).map_err(|error| error.to_string());
        let written = text.and_then(|text| {
            let random = Token::random().map_err(|error| error.to_string())?;
            let draft = format!(".dlock-report-{}", &random.secret()[..16]);
            named_file::replace(&self.0, &draft, text.as_bytes()).map_err(|fault| fault.to_string())
        });
        if let Err(why) = written {
            let text = format!("the report could not be written to {}: {why}", self.0.display());
            printer.say(Kind::Warning, What::Unwritten, &text);
        }
    }
}
