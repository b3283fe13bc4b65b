//! The rules and the dashboard in the packages. promtool tests the rules. A real Prometheus scrapes
//! a real `dlock metrics` and evaluates every expression of the dashboard. How Grafana draws it is
//! not tested.

use crate::support::dlock::Running;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use regex_lite::Regex;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

/// The path of a program of Debian's package prometheus. `./test` fetches it. If that failed, it
/// leaves a file, and the tests are skipped.
pub fn of_prometheus(program: &str) -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([place.to_owned()]);
    let found = directories.map(|directory| directory.join(program)).find(|file| file.exists());
    let noted = place.join("prometheus.not-to-be-had").exists();
    assert!(found.is_some() || noted, "{program} is missing: ./test fetches it");
    if found.is_none() {
        eprintln!("skipped: {program} could not be installed here");
    }
    found
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}

/// Each rule is valid, and has a test in which it raises its alert.
#[test]
fn each_rule_raises_its_alert() {
    let Some(promtool) = of_prometheus("promtool") else { return };
    for (task, file) in [("check", "prometheus/dlock.rules.yml"), ("test", "prometheus/dlock.rules.test.yml")]
    {
        let output = Command::new(&promtool).args([task, "rules"]).arg(packaging(file)).output();
        let output = output.expect("promtool runs");
        assert!(output.status.success(), "{file}: {output:?}");
    }
    let rules = fs::read_to_string(packaging("prometheus/dlock.rules.yml")).expect("rules");
    let tests = fs::read_to_string(packaging("prometheus/dlock.rules.test.yml")).expect("tests");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<_> = alerts.collect();
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n")), "{alert}");
    }
}

/// The expressions of the dashboard, each with the name of its panel.
fn expressions() -> Vec<(String, String)> {
    let text = fs::read_to_string(packaging("grafana/dlock.json")).expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().expect("targets").clone();
        let expressions = targets.into_iter().map(move |target| {
            let expression = target["expr"].as_str().expect("an expression");
            // Replaces variables as Grafana does.
            (title.clone(), expression.replace("$key", ".*").replace("$__rate_interval", "1m"))
        });
        expressions.collect::<Vec<_>>()
    };
    let all: Vec<_> = panels.iter().flat_map(of_panel).collect();
    assert!(all.len() > 15 && all.iter().all(|(_, text)| !text.contains('$')), "{all:#?}");
    all
}

/// `dlock metrics` prints every metric that the rules and the dashboard use.
#[test]
fn rules_and_dashboard_use_existing_metrics_only() {
    let world = World::without_redis();
    world.run("k", &[], "true").run();
    let page = world.dlock(["metrics"]).any_stdout().run().stdout;
    let rules = fs::read_to_string(packaging("prometheus/dlock.rules.yml")).expect("rules");
    let rules = rules.split("expr:").skip(1).filter_map(|text| text.split("annotations:").next());
    let texts = rules.map(str::to_owned).chain(expressions().into_iter().map(|(_, text)| text));
    let name = Regex::new(r"\bdlock_[a-z_]+").expect("a pattern");
    for text in texts {
        for found in name.find_iter(&text) {
            let family = found.as_str().trim_end_matches("_bucket");
            assert!(page.contains(&format!("# TYPE {family} ")), "{family}: {text}");
        }
    }
}

#[test]
fn each_panel_of_the_dashboard_has_data() {
    let Some(prometheus) = of_prometheus("prometheus") else { return };
    let world = World::with_redis(&[]);
    let runs = locks_in_every_state(&world);
    let collect = || {
        let page = world.dlock(["metrics"]).any_stdout().run().stdout;
        world.write("dlock.new", &page);
        fs::rename(world.path("dlock.new"), world.path("dlock.prom")).expect("a page");
    };
    collect();
    let page = serve(world.path("dlock.prom"));
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\n\
         scrape_configs: [{{ job_name: dlock, static_configs: [{{ targets: [\"127.0.0.1:{page}\"] }}] }}]\n",
        packaging("prometheus/dlock.rules.yml").display()
    );
    world.write("prometheus.yml", &config);
    let port = start(&world, &prometheus);
    let held = || has_data(port, "dlock_holders{key=\"held\"} == 1 and dlock_queue_length == 1");
    wait_until("Prometheus has scraped a page", || held() == Ok(true));
    let mut missing = expressions();
    // Rates need two scrapes with new events between them.
    wait_until("every panel has data", || {
        for key in ["free", "busy"] {
            world.run(key, &["-w"], "true").any_stderr().run();
        }
        collect();
        missing.retain(|(panel, text)| match has_data(port, text) {
            Ok(found) => !found,
            Err(said) => panic!("{panel}: {text}\n{said}"),
        });
        println!("missing: {missing:#?}");
        missing.is_empty()
    });
    assert_eq!(has_data(port, "dlock_paused{key=\"frozen\"} == 1"), Ok(true));
    for alert in ["DlockJobFailed", "DlockCrashed"] {
        wait_until(alert, || has_data(port, &format!("ALERTS{{alertname=\"{alert}\"}}")) == Ok(true));
    }
    let rules = get(port, "/api/v1/rules");
    assert!(rules.contains("\"health\":\"ok\"") && !rules.contains("\"health\":\"err\""), "{rules}");
    world.write("go", "");
    runs.into_iter().for_each(|run| drop(run.finish()));
}

/// Makes one lock with a holder and a waiter, one each that is paused, cooling and free, and one
/// with each kind of end.
fn locks_in_every_state(world: &World) -> [Running; 2] {
    world.run("free", &["--once-per", "1h", "--expect", "day"], "true").run();
    world.run("free", &["-q", "--once-per", "1h"], "true").run();
    world.run("free", &[], "exit 3").status(3).run();
    world.run("failed", &[], "exit 3").status(3).run();
    world.run("timeout", &["--max-run", "50ms"], "sleep 60").any_stderr().status(124).run();
    world.run("cooling", &["--min-hold", "5m"], "true").run();
    world.dlock(["pause", "-q", "frozen", "--for", "1h", "--reason", "freeze"]).run();
    let crashed = world.run("crashed", &[], "echo crashing >> log; sleep 60").any_stderr().spawn();
    world.wait_for_log("crashing");
    crashed.signal(rustix::process::Signal::KILL);
    world.wait_for_state("crashed", "free");
    let holder = world.run("held", &["-t", "1h"], HOLD).spawn();
    world.wait_for_log("up");
    world.run("held", &[], "true").status(75).any_stderr().run();
    world.run("held", &["-w", "10ms"], "true").status(75).any_stderr().run();
    let waiter = world.run("held", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("held", 1);
    [holder, waiter]
}

/// Serves the current content of a file over HTTP. Returns the port.
fn serve(file: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A request of this client fits into one read.
            drop(stream.read(&mut [0; 4096]));
            let page = fs::read_to_string(&file).unwrap_or_default();
            let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n";
            drop(write!(stream, "{head}Content-Length: {}\r\n\r\n{page}", page.len()));
        }
    });
    port
}

/// Starts a Prometheus, which ends with its world. Returns its port.
fn start(world: &World, program: &Path) -> u16 {
    wait_for("Prometheus answers", || {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut server = world.command(program);
        server.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        server.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let mut server =
            server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("Prometheus starts");
        // Another program may have taken the port meanwhile.
        wait_for("Prometheus answers or ends", || match server.try_wait().expect("our child") {
            Some(_) => Some(None),
            None => get(port, "/-/ready").contains("is Ready").then_some(Some(port)),
        })
    })
}

/// The answer of a Prometheus; empty while it cannot be reached.
fn get(port: u16, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        drop(write!(stream, "GET {path} HTTP/1.0\r\n\r\n"));
        drop(stream.read_to_string(&mut answer));
    }
    answer
}

/// Whether the value of an expression is a number.
fn has_data(port: u16, expression: &str) -> Result<bool, String> {
    let encoded = expression.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let answer = get(port, &format!("/api/v1/query?query={encoded}"));
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| answer.clone())?;
    let body: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))?;
    let found = body["data"]["result"].as_array().ok_or_else(|| body.to_string())?;
    Ok(found.iter().any(|series| series["value"][1].as_str().is_some_and(|value| value != "NaN")))
}
