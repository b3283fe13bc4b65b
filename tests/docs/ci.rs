//! docs/ci.md: the step of each runner, started, cancelled and ended as that runner does it; locks
//! over several steps; the table of concurrency settings; shards; a freeze.

use super::hold_recipes::{block, holds_while_it_works, start, works, world};
use crate::support::dlock::{BINARY, Running};
use crate::support::proc;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

const PAGE: &str = include_str!("../../docs/ci.md");
const KEY: &str = "deploy-production";
/// A container: its first process is the first of a pid namespace, and takes all others with it.
const CONTAINER: &[&str] = &["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// Starts a file of each step by `bash -e`. To cancel it, signals that process only.
    GitHub,
    /// Starts it by `docker exec`, in a container that runs already, and removes the container.
    GitHubContainer,
    /// Evaluates the lines at the end of a pipe. Signals the process group.
    GitLab,
    /// The same by the first process of a container, which reads the script from stdin.
    GitLabDocker,
    /// `sh -xe` below a wrapper. Signals every process with the cookie of the step.
    Jenkins,
    /// `bash -e -c` with a trap. Signals the process group.
    Buildkite,
    /// A shell at the end of a pipe, in a container that is killed.
    Woodpecker,
    /// The words are the first process of a container.
    Kubernetes,
}
use Runner::{Buildkite, GitHub, GitHubContainer, GitLab, GitLabDocker, Jenkins, Kubernetes, Woodpecker};

/// The text between two marks.
fn between(text: &'static str, from: &str, to: &str) -> &'static str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{to}")).0
}

impl Runner {
    /// What the page has for this runner, as lines of a shell.
    fn step(self) -> String {
        let lines = |text: &str, sign: &str| {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            lines.map(|line| format!("{}\n", line.trim_start_matches(sign))).collect::<String>()
        };
        match self {
            GitHub | GitHubContainer => {
                lines(between(PAGE, "run: |\n          ./b", "```"), "").replacen("uild", "./build", 1)
            }
            GitLab | GitLabDocker | Woodpecker => lines(between(PAGE, "  script:\n", "```"), "- "),
            Jenkins => lines(between(PAGE, "sh '''", "'''"), ""),
            Buildkite => between(PAGE, "- command: ", "\n").to_owned(),
            Kubernetes => between(PAGE, "command: [/usr/bin/", "]").replace(", ", " "),
        }
    }

    /// The shell and its arguments, for a step in the file `step`.
    fn words(self, step: &str) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        match self {
            GitHub => words(&["bash", "-e", "step"]),
            GitHubContainer => {
                words(&["nsenter", "--pid", "--mount", "--wd", "--target", "CONTAINER", "sh", "-e", "step"])
            }
            GitLab => words(&["bash", "step"]),
            GitLabDocker => words(&[CONTAINER, &["bash"]].concat()),
            Woodpecker => words(&[CONTAINER, &["sh", "-c", "cat step | sh -e"]].concat()),
            Jenkins => words(&["sh", "-c", JENKINS]),
            Buildkite => words(&["bash", "-e", "-c", &format!("trap 'kill -- $$' INT TERM QUIT; {step}")]),
            Kubernetes => words(CONTAINER).into_iter().chain(step.split(' ').map(str::to_owned)).collect(),
        }
    }

    /// The file that the runner makes of a step.
    fn file(self, step: &str) -> String {
        match self {
            GitLab | GitLabDocker => {
                let step = step.replace('\'', "'\\''");
                format!("trap exit 1 TERM\n\nset -eo pipefail\nset +o noclobber\n: | eval '{step}'\nexit 0\n")
            }
            _ => step.to_owned(),
        }
    }

    fn is_container(self) -> bool {
        matches!(self, GitHubContainer | GitLabDocker | Woodpecker | Kubernetes)
    }
}

/// As Jenkins does, which polls for the file with the status.
const JENKINS: &str = r#"
{ while [ ! -f result ]; do touch jenkins-log; sleep 0.1; done; } &
JENKINS_SERVER_COOKIE=$PWD sh -xe step > jenkins-log 2>&1
echo $? > result.tmp; mv result.tmp result
wait
read -r status < result; rm result
exit "$status"
"#;

struct Job {
    runner: Runner,
    child: Child,
    /// `unshare` of a container that runs longer than the step.
    container: Option<Child>,
}

fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a process id")
}

impl Job {
    fn start(world: &World, runner: Runner, step: &str) -> Self {
        let command = |words: &[String]| {
            let mut command = world.command(&words[0]);
            command.args(&words[1..]).env("PATH", path(world)).env("DLOCK_STORE", world.url());
            for variable in ["GITHUB_RUN_ID", "CI_JOB_URL", "BUILD_URL", "BUILDKITE_BUILD_URL"] {
                command.env(variable, "https://example.com/1");
            }
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        world.write("step", &runner.file(step));
        let mut words = runner.words(step);
        let container = (runner == GitHubContainer).then(|| {
            let words = [CONTAINER, &["tail", "-f", "/dev/null"]].concat();
            let words = words.into_iter().map(str::to_owned).collect::<Vec<_>>();
            command(&words).spawn().expect("a container")
        });
        if let Some(container) = &container {
            let first = wait_for("its first process", || proc::children(id(container)).first().copied());
            wait_until("it runs", || proc::name(first) == "tail");
            words.iter_mut().filter(|word| *word == "CONTAINER").for_each(|word| *word = first.to_string());
        }
        let mut shell = command(&words);
        if runner == GitLabDocker {
            shell.stdin(fs::File::open(world.path("step")).expect("a script"));
        }
        Self { runner, child: shell.spawn().expect("a shell"), container }
    }

    /// The processes of the step.
    fn processes(&self) -> Vec<i32> {
        let root = id(&self.child);
        proc::pids().into_iter().filter(|pid| proc::is_below(*pid, root) && proc::alive(*pid)).collect()
    }

    /// The first process of the container.
    fn first(&self) -> i32 {
        let outside = id(self.container.as_ref().unwrap_or(&self.child));
        wait_for("the first process", || proc::children(outside).first().copied())
    }

    /// Cancels the job as the runner does, KILL at the end included.
    fn cancel(&mut self, world: &World, is_over: impl Fn() -> bool) {
        let shell = id(&self.child);
        let group = Pid::from_raw(shell).expect("a process id");
        match self.runner {
            GitHub => {
                [Signal::INT, Signal::TERM].iter().for_each(|signal| proc::signal(shell, *signal));
                wait_until("the step ends", is_over);
                self.processes().iter().for_each(|pid| proc::signal(*pid, Signal::KILL));
            }
            GitLab | Buildkite => {
                kill_process_group(group, Signal::TERM).expect("it runs");
                wait_until("the step ends", is_over);
                // It may have ended as a whole.
                let _ = kill_process_group(group, Signal::KILL);
            }
            Jenkins => {
                let cookie = format!("JENKINS_SERVER_COOKIE={}", world.path("").display());
                let cookie = cookie.trim_end_matches('/').as_bytes();
                let reached =
                    self.processes().into_iter().filter(|pid| proc::has_in_environment(*pid, cookie));
                let reached = reached.collect::<Vec<_>>();
                assert!(!reached.is_empty());
                reached.iter().for_each(|pid| proc::signal(*pid, Signal::TERM));
            }
            GitLabDocker | Kubernetes => {
                let first = self.first();
                let inside = self.processes().into_iter().filter(|pid| *pid != shell);
                let reached = inside.filter(|pid| self.runner == GitLabDocker || *pid == first);
                reached.for_each(|pid| proc::signal(pid, Signal::TERM));
                wait_until("the step ends", is_over);
                proc::signal(first, Signal::KILL);
            }
            GitHubContainer | Woodpecker => proc::signal(self.first(), Signal::KILL),
        }
    }

    #[track_caller]
    fn fails(&mut self) {
        assert!(!self.child.wait().expect("our child").success(), "{:?}", self.runner);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in [Some(&mut self.child), self.container.as_mut()].into_iter().flatten() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn path(world: &World) -> String {
    format!("{}:/usr/bin:/bin", world.path("bin").display())
}

/// A world with a server, for containers; a short lease, for those that are killed as a whole.
fn project() -> World {
    let world = World::with_redis(&[]);
    fs::create_dir(world.path("bin")).expect("a directory");
    std::os::unix::fs::symlink(BINARY, world.path("bin/dlock")).expect("a link");
    world.write("config/dlock.toml", "ttl = \"8s\"\n");
    world.script("build.sh", "#!/bin/sh\n");
    world.script("deploy.sh", "#!/bin/sh\necho deploy >> log\nuntil [ -e go ]; do sleep 0.1; done\n");
    world
}

/// Whether a deployment of this world runs.
fn deploys(world: &World) -> bool {
    let home = world.path("").display().to_string();
    let home = home.trim_end_matches('/').as_bytes();
    proc::pids().into_iter().any(|pid| {
        proc::arguments(pid).starts_with("/bin/sh ./deploy.sh")
            && proc::acts(pid)
            && proc::has_in_environment(pid, home)
    })
}

fn hold(world: &World) -> Running {
    let holder = world.run(KEY, &[], "echo other >> log; until [ -e stop ]; do sleep 0.1; done").spawn();
    world.wait_for_log("other");
    holder
}

/// The step of the page on its runner: as written, without dlock, busy, with dlock killed, and
/// cancelled while it waits and while it deploys.
fn on_its_runner(runner: Runner) {
    let may = Command::new(CONTAINER[0]).args(&CONTAINER[1..]).arg("true").status();
    if runner.is_container() && !may.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not create a pid namespace");
        return;
    }
    let world = project();
    let step = runner.step();
    assert!(step.contains("dlock run -k deploy-production -w 10m"), "{step}");

    let mut job = Job::start(&world, runner, &step);
    world.wait_for_log("deploy");
    assert_eq!(world.state(KEY), "held");
    world.write("go", "");
    assert!(job.child.wait().expect("our child").success(), "{runner:?}");
    assert_eq!(world.state(KEY), "free", "{runner:?}: at once");
    drop(job);
    fs::remove_file(world.path("go")).expect("a file");

    world.write("log", "");
    Job::start(&world, runner, &step.replace("dlock run", "no-dlock run")).fails();
    assert!(world.log().is_empty(), "{runner:?}");

    let holder = hold(&world);
    Job::start(&world, runner, &step.replace(" -w 10m", "")).fails();
    let mut job = Job::start(&world, runner, &step);
    world.wait_for_waiters(KEY, 1);
    job.cancel(&world, || world.waiters(KEY) == 0);
    job.fails();
    if !matches!(runner, GitHubContainer | Woodpecker) {
        wait_until("it has left the queue", || world.waiters(KEY) == 0);
    }
    let next = world.run(KEY, &["-w"], "echo next >> log").any_stderr().spawn();
    world.write("stop", "");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["other", "next"], "{runner:?}");
    drop(job);

    for is_cancelled in [false, true] {
        world.write("log", "");
        let mut job = Job::start(&world, runner, &step);
        world.wait_for_log("deploy");
        if is_cancelled {
            job.cancel(&world, || !deploys(&world));
        } else {
            let dlock = job.processes().into_iter().find(|pid| proc::name(*pid) == "dlock");
            proc::signal(dlock.expect("dlock"), Signal::KILL);
        }
        wait_until(&format!("{runner:?}: no deployment"), || !deploys(&world));
        job.fails();
        world.wait_for_state(KEY, "free");
        assert_eq!(world.log(), ["deploy"], "{runner:?}");
    }
}

#[test]
fn the_step_of_github_actions() {
    on_its_runner(GitHub);
}

#[test]
fn the_step_of_github_actions_in_a_container() {
    on_its_runner(GitHubContainer);
}

#[test]
fn the_step_of_gitlab() {
    on_its_runner(GitLab);
}

#[test]
fn the_step_of_gitlab_in_docker() {
    on_its_runner(GitLabDocker);
}

#[test]
fn the_step_of_jenkins() {
    on_its_runner(Jenkins);
}

#[test]
fn the_step_of_buildkite() {
    on_its_runner(Buildkite);
}

#[test]
fn the_step_of_woodpecker() {
    on_its_runner(Woodpecker);
}

#[test]
fn the_container_of_kubernetes() {
    on_its_runner(Kubernetes);
}

/// The commands of a job, as a runner reads them from the YAML.
fn run_lines(block: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    let mut within = false;
    for line in block.lines() {
        if let Some(text) = line.trim_start().strip_prefix("run: ") {
            within = text == "|";
            steps.push(if within { String::new() } else { text.to_owned() });
        } else if within && line.starts_with("    ") {
            let step = steps.last_mut().expect("a step");
            step.push_str(line.trim_start());
            step.push('\n');
        } else {
            within = false;
        }
    }
    steps
}

/// A worker that runs each step in its own shell, with the environment that the steps before have
/// set.
const WORKER: &str = r#"
export GITHUB_ENV=$PWD/github_env GITHUB_RUN_ID=42
: > "$GITHUB_ENV"
failed= id=github_$PWD
for step in 1 2; do
    while IFS= read -r line; do export "$line"; done < "$GITHUB_ENV"
    [ -n "$failed" ] || RUNNER_TRACKING_ID=$id bash -e step$step || failed=1
done
while IFS= read -r line; do export "$line"; done < "$GITHUB_ENV"
[ -z "$DLOCK_KEY" ] || bash -e step3
[ -z "$failed" ]
"#;

/// What that worker does at its end, as the runner's `JobExtension`: kills each process that has the
/// identity of its steps in the environment.
const ORPHANS: &str = r#"
for process in /proc/[0-9]*; do
    if tr '\0' '\n' 2> /dev/null < "$process/environ" | grep -qxF "RUNNER_TRACKING_ID=$id"; then
        kill -9 "${process#/proc/}"
    fi
done 2> /dev/null
[ -z "$failed" ]
"#;

#[test]
fn several_steps_of_github_actions() {
    let world = world();
    let steps = run_lines(block(PAGE, "Several steps of GitHub Actions", "yaml"));
    assert_eq!(steps.len(), 3);
    for (number, step) in steps.iter().enumerate() {
        world.write(&format!("step{}", number + 1), step);
    }
    world.write("worker", WORKER);
    let worker = start(&world, "bash", &["worker"]);
    holds_while_it_works(&world, KEY, worker, "deploy.sh");

    // The runner is killed, and a step goes on.
    fs::remove_file(world.path("go")).expect("a file");
    let mut worker = start(&world, "setsid", &["bash", "worker"]);
    world.wait_for_lines("deploy.sh", 2);
    worker.kill().expect("it lives");
    worker.wait().expect("our child");
    world.run(KEY, &["-w", "0.5"], "true").status(75).any_stderr().run();
    world.write("go", "");
    world.wait_for_state(KEY, "free");

    // The step that gives the lock back is left out, and the runner ends what the steps have left.
    world.write("worker", &format!("{}{ORPHANS}", WORKER.replace("bash -e step3", "true")));
    assert!(start(&world, "bash", &["worker"]).wait().expect("our child").success());
    world.wait_for_state(KEY, "free");
    let history = world.dlock(["history", KEY]).any_stdout().run().stdout;
    assert!(!history.contains("expired"), "{history}");
}

#[test]
fn several_lines_of_gitlab() {
    let world = world();
    let yaml = block(PAGE, "Several lines of GitLab", "yaml");
    let lines = yaml.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    let job: String = lines.map(|line| format!("{line}\n")).collect();
    let job = format!("CI_JOB_URL=https://example.com/1\n{}", job.replace("-w 10m ", ""));
    world.write("job", &GitLab.file(&job));
    works(&world, KEY, "deploy.sh", || start(&world, "bash", &["job"]));
}

/// Each option of the table does what the runner's own setting does.
#[test]
fn the_table_of_concurrency_is_right() {
    let (_, table) = PAGE.split_once("## Your setting of concurrency\n").expect("the table");
    let rows = table.split("\n## ").next().expect("a section").lines().filter(|line| line.starts_with('|'));
    let ours = rows.filter_map(|row| row.split('|').nth(2)?.split('`').nth(1).map(str::to_owned));
    let mut ours = ours.collect::<Vec<_>>();
    assert!(ours.len() > 10, "{ours:?}");
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours, ["--replace --no-replace -w", "--replace -w", "-n 3 -w", "-w"]);
    let world = World::without_redis();
    let job = |name: &str| format!("echo {name} >> log; until [ -e go ]; do sleep 0.1; done");
    let begin = |options: &str, name: &str, status: i32| {
        let options = options.split(' ').collect::<Vec<_>>();
        world.run("k", &options, &job(name)).status(status).any_stderr().spawn()
    };
    // Only the newest waits, and what runs goes on; those that wait run in order.
    for (options, middle, log) in [
        ("--replace --no-replace -w", 75, &["first", "third"][..]),
        ("-w", 0, &["first", "second", "third"][..]),
    ] {
        world.write("log", "");
        let first = begin(options, "first", 0);
        world.wait_for_log("first");
        let second = begin(options, "second", middle);
        world.wait_for_waiters("k", 1);
        let third = begin(options, "third", 0);
        if middle == 0 {
            world.wait_for_waiters("k", 2);
            world.write("go", "");
            second.finish();
        } else {
            second.finish();
            world.write("go", "");
        }
        first.finish();
        third.finish();
        assert_eq!(world.log(), log, "{options}");
        fs::remove_file(world.path("go")).expect("a file");
    }
    // The newest ends what runs.
    world.write("log", "");
    let first = begin("--replace -w", "first", 79);
    world.wait_for_log("first");
    let second = begin("--replace -w", "second", 0);
    first.finish();
    world.wait_for_log("second");
    world.write("go", "");
    second.finish();
    // Three at a time.
    fs::remove_file(world.path("go")).expect("a file");
    let three = ["a", "b", "c"].map(|name| begin("-n 3 -w", name, 0));
    ["a", "b", "c"].iter().for_each(|name| world.wait_for_log(name));
    let fourth = begin("-n 3 -w", "d", 0);
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    three.into_iter().chain([fourth]).for_each(|run| drop(run.finish()));
}

/// Each shard is tested once; that of a runner that was killed is tested by another one; one that
/// fails fails its runner.
#[test]
fn tests_are_split_over_runners() {
    let world = project();
    world.script("runner", block(PAGE, "Tests that are split over runners", "sh"));
    let runner = |pipeline: &str| {
        let mut runner = world.command("sh");
        runner.arg("runner").env("PATH", path(&world)).env("DLOCK_STORE", world.url());
        runner.env("CI_PIPELINE_ID", pipeline).stdin(Stdio::null()).process_group(0).spawn().expect("sh")
    };
    // The first runner to come keeps its first shard until it is killed.
    world.script(
        "test",
        "#!/bin/sh\nif mkdir first; then until [ -e go ]; do sleep 0.1; done; fi\necho \"$2\" >> log\n",
    );
    let mut killed = runner("1");
    wait_until("it tests", || world.path("first").exists());
    let others = [runner("1"), runner("1")];
    wait_until("the others do the rest", || world.log().len() == 5);
    kill_process_group(Pid::from_raw(id(&killed)).expect("a process id"), Signal::KILL).expect("it runs");
    killed.wait().expect("our child");
    for mut other in others {
        assert!(other.wait().expect("our child").success());
    }
    let mut log = world.log();
    log.sort_unstable();
    assert_eq!(log, ["1/6", "2/6", "3/6", "4/6", "5/6", "6/6"]);
    world.script("test", "#!/bin/sh\necho \"$2\" >> log\n[ \"$2\" != 3/6 ] || exit 3\n");
    assert_eq!(runner("2").wait().expect("our child").code(), Some(3));
}

#[test]
fn a_freeze_lets_one_deployment_through() {
    let world = project();
    world.write("go", "");
    let (_, section) = PAGE.split_once("## A change freeze\n").expect("a section");
    let [freeze, through] = [1, 3].map(|at| section.split("```").nth(at).expect("a block"));
    let play = |lines: &str| {
        let script = format!("set -e\n{}", lines.trim_start_matches("sh"));
        let mut shell = world.command("sh");
        shell.args(["-c", &script]).env("PATH", path(&world)).env("DLOCK_STORE", world.url());
        assert!(shell.stderr(Stdio::null()).status().expect("sh").success(), "{lines}");
    };
    play(freeze);
    let refused = || world.run(KEY, &[], "echo refused >> log").status(75).any_stderr().run().stderr;
    assert!(refused().contains("freeze until Monday"));
    play(through);
    assert!(refused().contains("freeze until Monday"));
    assert_eq!(world.log(), ["deploy"]);
}
