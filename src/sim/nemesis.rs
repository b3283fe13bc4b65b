//! The faults that happen to a fleet, drawn before it starts: of the network, the server, machines
//! and processes.

use super::dice::Dice;
use super::network::{Direction, Net, Weather};
use super::time::{MS, MachineId, Nanos, Processes, SECOND, Sim};
use super::{Fleet, Night, Planted, QUIET};
use crate::lock::{Key, Name, Owner};
use crate::rules::{Revoke, When};
use std::sync::Arc;

impl Fleet {
    /// Draws the faults that happen to the fleet, and their times.
    pub(super) fn nemesis(&mut self) {
        self.net.judge().is_calm = self.night == Night::Calm;
        if matches!(self.night, Night::Weather | Night::Everything) {
            let odds = |dice: &mut Dice| if dice.one_in(3) { 0 } else { dice.between(5, 40) };
            let weather = Weather {
                delay: self.dice.between(MS, 250 * MS),
                lost: odds(&mut self.dice),
                repeated: odds(&mut self.dice),
                late: odds(&mut self.dice),
            };
            self.net.set_weather(weather);
            self.faults += 1;
        }
        if self.net.planted == Planted::RenewsAnyGrant {
            // A first request must come again after its lease, while its machine is suspended.
            self.net.set_weather(Weather { repeated: 1, ..Weather::FINE });
        }
        if self.night != Night::Calm {
            for _ in 0..self.dice.between(1, 8) {
                self.strike();
            }
        }
        let net = Arc::clone(&self.net);
        self.sim.at(QUIET, move |_| net.set_weather(Weather::FINE));
    }

    fn strike(&mut self) {
        let dice = &mut self.dice;
        let (at, kind) = (dice.below(14 * SECOND), dice.below(6));
        let until = at + if dice.one_in(3) { dice.below(6 * SECOND) } else { dice.below(800 * MS) };
        let until = until.min(QUIET);
        let (run, machine) = (*dice.pick(&self.runs), *dice.pick(&self.machines));
        let (direction, other) = if dice.one_in(2) {
            (Direction::There, Direction::Back)
        } else {
            (Direction::Back, Direction::There)
        };
        let both = dice.one_in(2);
        let (crashes, cuts) = match self.night {
            Night::Crashes => (true, false),
            Night::Cuts => (false, true),
            Night::Everything => (kind % 2 == 0, kind % 2 == 1),
            _ => (false, false),
        };
        let what = dice.below(if crashes { 9 } else { 3 });
        // Mostly a run whose job lives.
        let pick = usize::try_from(dice.below(1000)).ok().filter(|pick| pick % 4 > 0);
        let is_cut_off = both && self.night == Night::Everything;
        let (step, is_name_a) = (dice.below(20_000_000), dice.one_in(2));
        let net = Arc::clone(&self.net);
        self.faults += 1;
        match self.night {
            Night::Forgets => self.sim.at(at, move |_| net.restart_server(until, true)),
            Night::Steps => {
                let micros = i64::try_from(step).unwrap_or(0) - 10_000_000;
                self.sim.at(at, move |_| net.step_clock(micros));
            }
            Night::Everything if kind == 5 => self.sim.at(at, move |_| {
                let key = Key::new(if is_name_a { "a" } else { "b" }).expect("a key");
                let name = Name::new("dlock:", &key).expect("a name");
                let revoke = Revoke { when: When::Safe, by: Owner::default() };
                net.operate(|table, now| {
                    net.judge().revoked(name.as_str(), table);
                    table.revoke(now, &name, &revoke);
                });
            }),
            _ if cuts => self.sim.at(at, move |_| match what {
                0 => net.stop_server(until),
                1 => net.restart_server(until, false),
                _ => {
                    net.cut(machine, direction, until);
                    if both {
                        net.cut(machine, other, until);
                    }
                }
            }),
            _ if crashes => self.sim.at(at, move |sim| {
                let lives = pick.and_then(|pick| net.judge().one_that_lives(pick));
                let run = lives.unwrap_or(run);
                // A guard that hangs matters only if the lease cannot be renewed either.
                if what == 5 && is_cut_off {
                    let of_the_run = net.sim.machine_of(run.dlock);
                    net.cut(of_the_run, Direction::There, until);
                }
                crash(sim, &net, what, run, machine, until);
            }),
            _ => {}
        }
    }
}

/// Makes a fault happen to processes or a machine.
fn crash(sim: &Arc<Sim>, net: &Arc<Net>, what: u64, run: Processes, machine: MachineId, until: Nanos) {
    sim.tell(|| format!("crash {what} of {run:?} or machine {machine} until {} us", until / 1000));
    let now = sim.now();
    let kill = |process| {
        sim.kill(process);
        net.judge().is_down(process, now, Nanos::MAX);
        sim.wake_process(run.dlock);
        sim.wake_process(run.guard);
    };
    let stop = |process| {
        sim.stop(process, until);
        net.judge().is_down(process, now, until);
    };
    match what {
        0 => kill(run.dlock),
        1 => kill(run.guard),
        2 => stop(run.dlock),
        3 if sim.suspend(machine, until) => net.judge().suspended.push((machine, now, until)),
        4 if machine.is_multiple_of(2) => {
            sim.kill_machine(machine);
            net.judge().machine_died(machine, now);
        }
        5 => stop(run.guard),
        6 => sim.stop(run.job, until),
        7 => {
            let mut judge = net.judge();
            let Some(job) = judge.job_of(run) else { return };
            if sim.machine_runs_from(judge.jobs[job].machine) <= now {
                judge.end(job, now, false, Nanos::MAX);
                sim.wake_process(run.dlock);
                sim.wake_process(run.guard);
            }
        }
        8 => {
            kill(run.dlock);
            kill(run.guard);
        }
        _ => {}
    }
}
