//! Checks the JSON that dlock prints on real stores against docs/dlock.schema.json. The document
//! allows unknown fields, for later versions; here they are refused, so that none is forgotten.

use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

on_every_store!(
    commands_print_what_the_schema_says,
    reports_are_what_the_schema_says,
    watch_prints_what_the_schema_says
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

fn document() -> Value {
    serde_json::from_str(include_str!("../../docs/dlock.schema.json")).expect("the schema is JSON")
}

/// The definitions, which refuse unknown fields.
pub struct Definitions {
    schemas: Schemas,
    compiler: Compiler,
}

impl Definitions {
    pub fn read() -> Self {
        let mut compiler = Compiler::new();
        compiler.enable_format_assertions();
        let mut strict = document();
        for definition in strict["$defs"].as_object_mut().expect("definitions").values_mut() {
            if definition["type"] == "object" {
                definition["additionalProperties"] = json!(false);
            }
        }
        compiler.add_resource("urn:dlock:json", strict).expect("the document is a schema");
        Self { schemas: Schemas::new(), compiler }
    }

    fn of(&mut self, name: &str) -> SchemaIndex {
        let place = format!("urn:dlock:json#/$defs/{name}");
        self.compiler.compile(&place, &mut self.schemas).unwrap_or_else(|error| panic!("{name}: {error:#}"))
    }

    #[track_caller]
    pub fn check(&mut self, name: &str, text: &str) -> Value {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let index = self.of(name);
        if let Err(error) = self.schemas.validate(&value, index) {
            panic!("{name}: {error:#}\n{value:#}");
        }
        value
    }
}

fn commands_print_what_the_schema_says(backend: Backend) {
    let world = World::new(backend);
    let mut definitions = Definitions::read();
    let print = |words: &[&str]| world.dlock(words).any_stdout().run().stdout;
    for mode in [&["-k", "a"][..], &["-k", "b", "-k", "c", "-s"], &["-k", "d", "-n", "2"]] {
        let words = [&["acquire", "--json", "-q", "-t", "3s"], mode].concat();
        definitions.check("acquire", &print(&words));
    }
    definitions.check("status", &print(&["status", "--json"]));
    ["a", "b", "c", "d"].iter().for_each(|key| world.wait_for_state(key, "free"));
    definitions.check("status", &print(&["status", "never", "--json"]));
    definitions.check("history", &print(&["history", "-q", "never", "--json"]));

    world.run("k", &["--reason", "why"], "exit 3").status(3).run();
    world.run("k", &[], "kill -KILL $$").dies_of(9).run();
    world.run("k", &["--max-run", "50ms"], "sleep 60").status(124).any_stderr().run();
    let forced = world.run("k", &["-t", "1m"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["release", "k", "--force"]).any_stderr().run();
    forced.finish();
    world.run("cooling", &["--min-hold", "1m"], "true").run();
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_lines("up", 2);
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    if backend == Backend::Redis {
        world.redis().ask::<()>(&["SET", "dlock:foreign", "v"]);
    }
    let status = definitions.check("status", &print(&["status", "--json"]));
    assert_eq!(status.as_array().map(Vec::len), Some(if backend == Backend::Redis { 3 } else { 2 }));
    definitions.check("history", &print(&["history", "k", "--json"]));
    definitions.check("doctor", &world.dlock(["doctor", "--json"]).any_stdout().spawn().output().stdout);
    let nowhere = ["doctor", "--json", "--store", "redis://127.0.0.1:1"];
    definitions.check("doctor", &world.dlock(nowhere).any_stdout().status(69).run().stdout);
    let busy = world.run("k", &["--log-format", "json"], "true").status(75).any_stderr().run();
    definitions.check("message", &busy.stderr);
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

fn watch_prints_what_the_schema_says(backend: Backend) {
    let world = World::new(backend);
    let mut definitions = Definitions::read();
    let watch = world.dlock(["watch", "-v", "k", "--json"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    world.run("k", &["--reason", "why"], "exit 3").status(3).run();
    world.run("k", &[], "kill -KILL $$").dies_of(9).run();
    let holder = world.run("k", &["-t", "1m", "-n", "2"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.run("k", &[], "true").status(75).any_stderr().run();
    world.run("k", &["-w", "100ms"], "true").status(75).any_stderr().run();
    world.dlock(["release", "k", "--force"]).any_stderr().run();
    holder.finish();
    wait_until("all is told", || watch.printed().contains("\"forced\""));
    watch.signal(rustix::process::Signal::TERM);
    let lines = watch.finish().stdout;
    assert!(lines.lines().count() >= 7, "{lines}");
    for line in lines.lines() {
        definitions.check("event", line);
    }
}

fn reports_are_what_the_schema_says(backend: Backend) {
    let world = World::new(backend);
    let mut definitions = Definitions::read();
    let report = |options: &[&str], script: &str, status| {
        let options = [&["--report", "report"][..], options].concat();
        world.run("k", &options, script).status(status).any_stderr().run();
        world.read("report")
    };
    assert_eq!(definitions.check("report", &report(&[], "exit 3", 3))["exit_status"], 3);
    assert_eq!(
        definitions.check("report", &report(&["--max-run", "100ms"], "sleep 60", 124))["outcome"],
        "timeout"
    );
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    assert_eq!(definitions.check("report", &report(&[], "true", 75))["outcome"], "busy");
    world.write("go", "");
    holder.finish();
    wait_until("it is free", || world.state("k") == "free");
    let gone = report(&["--store", "redis://127.0.0.1:1"], "true", 69);
    assert_eq!(definitions.check("report", &gone)["outcome"], "unreachable");
    assert_eq!(definitions.check("report", &report(&["--store", "x"], "true", 78))["store"], Value::Null);
}

/// The document refuses wrong values, and describes every field.
#[test]
fn the_document_is_strict_and_complete() {
    let mut definitions = Definitions::read();
    let index = definitions.of("doctor");
    let good = json!([{ "node": null, "check": "c", "verdict": "ok", "found": "f", "advice": null }]);
    assert!(definitions.schemas.validate(&good, index).is_ok());
    for (field, value) in [("verdict", json!("fine")), ("found", json!(null)), ("more", json!(1))] {
        let mut changed = good.clone();
        changed[0][field] = value;
        assert!(definitions.schemas.validate(&changed, index).is_err(), "{changed}");
    }
    let mut lacking = good;
    lacking[0].as_object_mut().expect("an object").remove("node");
    assert!(definitions.schemas.validate(&lacking, index).is_err(), "{lacking}");
    let index = definitions.of("message");
    let line = json!({ "time": "yesterday", "level": "info", "message": "m", "key": null });
    assert!(definitions.schemas.validate(&line, index).is_err(), "times are looked at");

    for (name, definition) in document()["$defs"].as_object().expect("definitions") {
        assert!(definition["description"].is_string(), "{name}");
        let Some(properties) = definition["properties"].as_object() else { continue };
        let required = definition["required"].as_array().expect("what is required");
        for (field, property) in properties {
            assert!(property["description"].is_string(), "{name}.{field}");
            assert!(required.contains(&json!(field)), "{name}.{field} is always there");
        }
    }
}
