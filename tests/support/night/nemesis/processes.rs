//! Faults of processes: kills, stops and other signals to dlock, its guard and the job.

use super::super::crowd::{Crowd, now};
use super::super::judge::{Hit, Kind, Trouble};
use super::super::site::Arrangement;
use super::{Heal, LOCKERS, Nemesis, Outages, Profile};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

impl Nemesis<'_> {
    /// Hits a process. Returns false if there was none.
    pub(super) fn hit_a_process(&mut self) -> bool {
        let is_lenient = match self.profile {
            Profile::Calm | Profile::Safe | Profile::Cut | Profile::SlowLine => false,
            Profile::Unguarded => self.dice.roll(2) == 0,
            Profile::Forgetful | Profile::Jumpy => true,
        };
        let (what, hit) = *self.dice.of(if is_lenient {
            &[("kill dlock and guard", Hit::KillBoth), ("stop a whole tree", Hit::StopAll)]
        } else {
            &[
                ("kill dlock", Hit::KillDlock),
                ("kill dlock", Hit::KillDlock),
                ("kill the guard", Hit::KillGuard),
                ("kill the job", Hit::KillJob),
                ("stop dlock", Hit::Stop),
                ("stop the guard", Hit::Stop),
                ("stop the job", Hit::StopJob),
                ("interrupt dlock", Hit::Interrupt),
                ("terminate dlock", Hit::Interrupt),
            ]
        });
        let is_long = self.outages == Outages::Any && self.dice.roll(4) == 0;
        let ms = if is_long { 2000 + self.dice.roll(5000) } else { 5 + self.dice.roll(600) };
        let mut live = self.crowd.live();
        let candidates: Vec<i32> = live.keys().copied().collect();
        if candidates.is_empty() {
            return false;
        }
        let pid = *self.dice.of(&candidates);
        let Some(run) = live.get_mut(&pid) else { return false };
        // If dlock is stopped and then its guard killed, no process is left to stop the job.
        let may_be_hit_again = matches!(self.profile, Profile::Forgetful | Profile::Jumpy);
        if !may_be_hit_again && run.hits.iter().any(|(_, hit)| !matches!(hit, Hit::FewFiles | Hit::FewTasks))
        {
            return false;
        }
        // A tree of only dlock waits, and is a good target, too.
        let tree = Crowd::below(pid);
        let opened = |name: &dyn Fn(&str) -> bool| -> Vec<OwnedFd> {
            let found = tree.iter().filter(|(_, comm)| name(comm));
            found.filter_map(|(pid, _)| pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()).collect()
        };
        let targets = match (hit, what) {
            (Hit::KillDlock | Hit::Interrupt, _) | (Hit::Stop, "stop dlock") => {
                opened(&|name| LOCKERS.contains(&name))
            }
            (Hit::KillGuard | Hit::Stop, _) => opened(&|name| name == "dlock-guard"),
            (Hit::KillJob | Hit::StopJob, _) => opened(&|name| name == "night-job"),
            (Hit::KillBoth, _) => opened(&|name| name.starts_with("dlock")),
            _ => opened(&|name| name.starts_with("dlock") || name == "night-job"),
        };
        // A pidfd refers to the process that was found only if the process is still below the run:
        // process ids are reused.
        let still: BTreeSet<i32> = Crowd::below(pid).into_iter().map(|(pid, _)| pid).collect();
        if targets.is_empty() || !tree.iter().all(|(pid, _)| still.contains(pid)) {
            return false;
        }
        run.hits.push((now(), hit));
        let signal = match hit {
            Hit::KillDlock | Hit::KillGuard | Hit::KillJob | Hit::KillBoth => Signal::KILL,
            Hit::Stop | Hit::StopJob | Hit::StopAll => Signal::STOP,
            _ if what == "terminate dlock" => Signal::TERM,
            _ => Signal::INT,
        };
        for target in &targets {
            let _gone = pidfd_send_signal(target, signal);
        }
        let (is_script, id) = (run.kind == Kind::Script, run.id);
        drop(live);
        self.count(what);
        if signal == Signal::STOP {
            // In a directory a process that is stopped during a change delays the others.
            let kind = "stopped";
            let holds_up = self.store.arrangement == Arrangement::File && !is_script;
            let trouble = Trouble { kind, from: now(), until: 0, forgets: false, empties: false };
            let trouble = holds_up.then_some(trouble);
            self.open.push((now() + ms * 1_000_000, Heal::Continue(targets, pid, id), trouble));
        }
        true
    }
}
