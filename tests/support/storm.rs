//! A crowd with random kills: runs of random modes on random keys, some of which are killed with
//! -9, interrupted or stopped for a moment. The jobs themselves find out whether one runs beside
//! another that it must not meet.

use super::dlock::{End, Output, Running};
use super::wait::{OUTAGE, wait_until};
use super::world::World;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::thread::{self, sleep};
use std::time::Duration;

/// The keys of a run, as `-k` options, and its mode.
pub struct Wish {
    pub keys: &'static [&'static str],
    pub options: &'static [&'static str],
    /// Two jobs that share a key may meet if both say `shared`, or if both say `slot`, in different slots.
    pub kind: &'static str,
}

/// Announces itself for each key, and then looks for other jobs that it must not meet: of two, at
/// least one sees the other. The announcement of a killed process does not count; nor does another
/// process with the same id, which has another start time.
pub const JOB: &str = r#"
kind=$1; shift
read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ born _ < /proc/$$/stat
for key; do : > "in.$key.$kind$DLOCK_SLOT.$$.$born"; done
for key; do
    for other in in."$key".*; do
        rest=${other#in."$key".}; theirs=${rest%%.*}; who=${rest#*.}; pid=${who%.*}
        [ "$pid" = $$ ] && continue
        case $kind:$theirs in
        shared:shared) continue ;;
        slot:slot"$DLOCK_SLOT") ;;
        slot:slot*) continue ;;
        esac
        state=gone
        { read -r _ _ state _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ then _ < "/proc/$pid/stat"; } 2> /dev/null
        case $state in
        gone | Z | X) ;;
        *) [ "$then" = "${who#*.}" ] && [ -e "$other" ] && echo "overlap $kind$DLOCK_SLOT $other" >> log ;;
        esac
    done
done
for key; do echo "start $kind $key $DLOCK_FENCE" >> log; done
sleep 0.01
for key; do rm "in.$key.$kind$DLOCK_SLOT.$$.$born"; done
"#;

/// Whether the long tests were requested.
pub fn is_soak() -> bool {
    std::env::var_os("DLOCK_SOAK").is_some()
}

/// Number of runs of the crowd; many only in the long tests.
pub fn runs(each: usize) -> usize {
    if is_soak() { 20 * each } else { each }
}

/// `workers` make `each` runs, with the wishes in turn, and the result is checked.
pub fn storm(world: &World, workers: usize, each: usize, wishes: &[Wish]) {
    world.write("job", JOB);
    thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                let mut dice = Dice(u64::try_from(worker).expect("a number") + 1);
                for _ in 0..runs(each) {
                    let output = one_run(world, "2s", dice.of(wishes), &mut dice);
                    // A lease of 2 s may end while the disk of a server is busy.
                    let is_late = output.stderr.contains("too late to rely on it");
                    assert!(EXPECTED.contains(&output.end()) || is_late, "{output:?}");
                }
            });
        }
    });
    let starts = judge(world);
    assert!(starts > workers * runs(each) / 3, "most of them ran: {starts}");
    for key in keys_of(wishes) {
        wait_until("the lock is free", || world.state(key) == "free");
        // The guard of a killed waiter may be about to leave the queue.
        wait_until("nobody waits", || world.waiters(key) == 0);
    }
}

pub fn keys_of(wishes: &[Wish]) -> BTreeSet<&'static str> {
    wishes.iter().flat_map(|wish| wish.keys).copied().collect()
}

/// Checks what the jobs have logged, and returns the number of grants.
pub fn judge(world: &World) -> usize {
    let log = world.log();
    let overlaps = log.iter().filter(|line| line.starts_with("overlap")).collect::<Vec<_>>();
    assert!(overlaps.is_empty(), "they met: {overlaps:?}");
    let starts = log.iter().filter_map(|line| line.strip_prefix("start ")).collect::<Vec<_>>();
    let grants = starts.iter().filter_map(|start| start.split_once(' ')).map(|(_, grant)| grant);
    assert_eq!(grants.collect::<BTreeSet<_>>().len(), starts.len(), "each grant of a key has its own fence");
    starts.len()
}

/// The possible ends of runs with random kills.
pub const EXPECTED: [End; 5] =
    [End::Status(0), End::Status(75), End::Status(79), End::Signal(2), End::Signal(9)];

pub fn one_run(world: &World, ttl: &str, wish: &Wish, dice: &mut Dice) -> Output {
    let patience: &[&str] = match dice.roll(4) {
        0 => &[],
        1 => &["-w", "200ms"],
        _ => &["-w"],
    };
    let keys = wish.keys.iter().flat_map(|key| ["-k", *key]);
    let mut running: Running = world
        .dlock(["run", "-t", ttl, "--grace", "100ms"])
        .args(keys)
        .args(wish.options)
        .args(patience)
        .args(["--", "sh", "job", wish.kind])
        .args(wish.keys)
        // A server under random kills may be slow to answer.
        .env("DLOCK_OP_TIMEOUT", "20s")
        .any_stderr()
        .spawn();
    let fate = dice.roll(8);
    for _ in 0..dice.roll(20) {
        if running.has_ended() {
            break;
        }
        sleep(Duration::from_millis(3));
    }
    match fate {
        0 => running.signal(Signal::KILL),
        1 => running.signal(Signal::INT),
        2 => {
            running.signal(Signal::STOP);
            sleep(Duration::from_millis(20));
            running.signal(Signal::CONT);
        }
        _ => {}
    }
    running.output_within(OUTAGE)
}

/// Reproducible chance: xorshift.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub fn of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        let sides = u64::try_from(things.len()).expect("a number");
        &things[usize::try_from(self.roll(sides)).expect("a number")]
    }
}
