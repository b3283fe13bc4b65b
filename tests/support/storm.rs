//! A crowd that is shot at: runs of random modes on random keys, some of which are killed with -9, interrupted or stopped
//! for a moment. The jobs themselves find out whether one runs beside another that it must not meet.

use super::dlock::{End, Running};
use super::wait::wait_until;
use super::world::World;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::thread::{self, sleep};
use std::time::Duration;

/// What a run asks for: its keys, as `-k` options, and its mode.
pub struct Wish {
    pub keys: &'static [&'static str],
    pub options: &'static [&'static str],
    /// Two jobs that share a key may meet if both say `shared`, or if both say `slot`, in different slots.
    pub kind: &'static str,
}

/// Announces itself for each key, and then looks for others that it must not meet: of two at least one sees the other. A
/// process that was killed leaves its announcement behind, and does not count.
const JOB: &str = r#"
kind=$1; shift
for key; do : > "in.$key.$kind$DLOCK_SLOT.$$"; done
for key; do
    for other in in."$key".*; do
        rest=${other#in."$key".}; theirs=${rest%.*}; pid=${rest##*.}
        [ "$pid" = $$ ] && continue
        case $kind:$theirs in
        shared:shared) continue ;;
        slot:slot"$DLOCK_SLOT") ;;
        slot:slot*) continue ;;
        esac
        state=gone
        { read -r _ _ state _ < "/proc/$pid/stat"; } 2> /dev/null
        case $state in
        gone | Z | X) ;;
        *) [ -e "$other" ] && echo "overlap $kind$DLOCK_SLOT $other" >> log ;;
        esac
    done
done
for key; do echo "start $kind $key $DLOCK_FENCE" >> log; done
sleep 0.01
for key; do rm "in.$key.$kind$DLOCK_SLOT.$$"; done
"#;

/// How many runs the crowd makes: many only when asked for.
pub fn runs(each: usize) -> usize {
    if std::env::var_os("DLOCK_SOAK").is_some() { 20 * each } else { each }
}

/// Has `workers` make `each` runs, of the wishes one after the other, and looks at what came of it.
pub fn storm(world: &World, workers: usize, each: usize, wishes: &[Wish]) {
    world.write("job", JOB);
    thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                let mut dice = Dice(u64::try_from(worker).expect("a number") + 1);
                for _ in 0..runs(each) {
                    one_run(world, dice.of(wishes), &mut dice);
                }
            });
        }
    });
    let log = world.log();
    let overlaps = log.iter().filter(|line| line.starts_with("overlap")).collect::<Vec<_>>();
    assert!(overlaps.is_empty(), "they met: {overlaps:?}");
    let starts = log.iter().filter_map(|line| line.strip_prefix("start ")).collect::<Vec<_>>();
    assert!(starts.len() > workers * runs(each) / 3, "most of them ran: {}", starts.len());
    let grants = starts.iter().filter_map(|start| start.split_once(' ')).map(|(_, grant)| grant);
    assert_eq!(grants.collect::<BTreeSet<_>>().len(), starts.len(), "each grant of a key has its own fence");
    let keys = wishes.iter().flat_map(|wish| wish.keys).collect::<BTreeSet<_>>();
    for key in keys {
        wait_until("the lock is free", || world.state(key) == "free");
        assert_eq!(world.waiters(key), 0);
    }
}

fn one_run(world: &World, wish: &Wish, dice: &mut Dice) {
    let patience: &[&str] = match dice.roll(4) {
        0 => &[],
        1 => &["-w", "200ms"],
        _ => &["-w"],
    };
    let keys = wish.keys.iter().flat_map(|key| ["-k", *key]);
    let mut running: Running = world
        .dlock(["run", "-t", "2s", "--grace", "100ms"])
        .args(keys)
        .args(wish.options)
        .args(patience)
        .args(["--", "sh", "job", wish.kind])
        .args(wish.keys)
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
    let output = running.output();
    let expected = [End::Status(0), End::Status(75), End::Status(79), End::Signal(2), End::Signal(9)];
    assert!(expected.contains(&output.end()), "fate {fate}, {patience:?}: {output:?}");
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

    fn of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        let sides = u64::try_from(things.len()).expect("a number");
        &things[usize::try_from(self.roll(sides)).expect("a number")]
    }
}
