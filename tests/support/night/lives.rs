//! What the jobs of a night record about themselves. Each has a record in a shared memory file,
//! written by `job.c` as it runs, so that it is there even if the job is killed. They also
//! increment registers that refuse a stale fence.

use crate::support::world::{World, suite_home};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// One job, as it saw itself. Times are nanoseconds of CLOCK_BOOTTIME.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The id of its run.
    pub run: u64,
    pub pid: u64,
    pub start: u64,
    /// The last time at which the job was alive.
    pub last: u64,
    /// Whether the job ended by itself.
    pub ended: bool,
    pub fence: u64,
    pub slot: Option<u32>,
    /// Number of times that a register refused it as stale.
    pub refused: u64,
    /// The register, counted from 0, that it was writing when it was killed.
    pub pending: Option<usize>,
    /// Number of increments that each of its registers accepted.
    pub accepted: [u64; 4],
}

const WORDS: usize = 16;

/// The files to which the jobs of one round write.
pub struct Book {
    lives: PathBuf,
    registers: PathBuf,
}

impl Book {
    /// Creates empty files in a world.
    pub fn new(world: &World) -> Self {
        let book = Self { lives: world.path("lives"), registers: world.path("registers") };
        let sized =
            |path: &Path, size| File::create(path).and_then(|file| file.set_len(size)).expect("a file");
        sized(&book.lives, (1 << 19) * 128);
        sized(&book.registers, 4096);
        book
    }

    /// The words before a job's own arguments.
    pub fn words(&self) -> [&Path; 3] {
        [program(), &self.lives, &self.registers]
    }

    /// Tells all jobs to end.
    pub fn end_jobs(&self) {
        let file = File::options().write(true).open(&self.lives).expect("lives");
        file.write_all_at(&1_u64.to_ne_bytes(), 8).expect("a word");
    }

    /// The records of all jobs that have begun.
    pub fn lives(&self) -> Vec<Life> {
        let head = words(&self.lives, 0, 1)[0];
        let count = usize::try_from(head).expect("a number");
        let all = words(&self.lives, 1, count);
        all.chunks_exact(WORDS).filter(|life| life[0] > 0).map(Life::read).collect()
    }

    /// The value of a register.
    pub fn register(&self, at: usize) -> u64 {
        let bytes = fs::read(&self.registers).expect("registers");
        number(&bytes[at * 16 + 8..])
    }
}

impl Life {
    fn read(words: &[u64]) -> Self {
        Self {
            run: words[0],
            pid: words[1],
            start: words[2],
            last: words[3],
            ended: words[4] > 0,
            fence: words[5],
            slot: words[6].checked_sub(1).map(|slot| u32::try_from(slot).expect("a slot")),
            refused: words[7],
            pending: words[8].checked_sub(1).map(|at| usize::try_from(at).expect("a few")),
            accepted: [words[9], words[10], words[11], words[12]],
        }
    }
}

/// The numbers of `lives` records, from `first` on.
fn words(path: &Path, first: usize, lives: usize) -> Vec<u64> {
    let mut bytes = vec![0; lives * WORDS * 8];
    let at = u64::try_from(first * WORDS * 8).expect("a place");
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, at)).expect("lives");
    bytes.chunks_exact(8).map(number).collect()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// The program behind `job.c`.
fn program() -> &'static Path {
    static BUILT: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (program, _) = BUILT.get_or_init(|| {
        let home = tempfile::tempdir_in(suite_home()).expect("a directory");
        let program = home.path().join("night-job");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/night/job.c");
        let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
        assert!(built.expect("cc is installed").success(), "cc cannot build the job");
        (program, home)
    });
    program
}
