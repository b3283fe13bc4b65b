//! The example of docs/recipes.md that shows why locks are needed: nine buyers on three servers,
//! and a stock of seven in a plain file. Without a lock more is sold than there is. Under `dlock
//! run` that never happens, nor with the stock in five segments and a slot for each.
//! benches/oversell.sh measures that segments are faster.

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

on_every_store!(without_a_lock_it_oversells, under_a_lock_it_never_does, in_slots_it_never_does);

const STOCK: usize = 7;
const BUYERS: usize = 9;
const SEGMENTS: usize = 5;

/// Forces the race: between reading the stock and writing it, a buyer waits until all buyers have
/// read it.
const PAY_WHEN_ALL_HAVE_READ: &str = "
    : > read.$$
    while [ $(ls read.* | wc -l) -lt 9 ]; do sleep 0.1; done";

/// Under a lock the buyers cannot all be inside at once, but all try: the first buyer pays only
/// when eight others wait. Two buyers inside at once would be noticed, and would have read an old
/// stock.
const PAY_WHEN_ALL_HAVE_COME: &str = "
    mkdir inside || echo 'not alone' >> log
    while [ $(ls come.* | wc -l) -lt 9 ]; do sleep 0.1; done
    sleep 0.1
    rmdir inside";

/// Five buyers are inside at the same time, each in its own segment. Two buyers in one segment, or
/// one beside a buyer that has all segments, would be noticed.
const PAY_WHEN_FIVE_ARE_IN: &str = "
    mkdir inside.$DLOCK_SLOT || echo 'not alone' >> log
    [ -n \"$DLOCK_SLOT\" ] || [ \"$(echo inside.*)\" = inside. ] || echo 'not alone' >> log
    : > come.$$
    while [ $(ls come.* | wc -l) -lt 5 ]; do sleep 0.1; done
    sleep 0.1
    rmdir inside.$DLOCK_SLOT";

fn without_a_lock_it_oversells(backend: Backend) {
    let world = shop(backend, PAY_WHEN_ALL_HAVE_READ);
    open(&world, "./buy");
    assert_eq!(sold(&world), BUYERS, "each of the nine is told that it has bought one of seven");
    assert_eq!(world.read("stock").trim(), (STOCK - 1).to_string(), "and six are said to be left");
}

fn under_a_lock_it_never_does(backend: Backend) {
    let world = shop(backend, PAY_WHEN_ALL_HAVE_COME);
    open(&world, &format!(": > come.$$; exec {BINARY} run -k stock -w -- ./buy"));
    assert_eq!(sold(&world), STOCK);
    assert_eq!(world.log().iter().filter(|line| *line == "sold out").count(), BUYERS - STOCK);
    assert_eq!(world.read("stock").trim(), "0");
    assert_eq!(world.log().len(), BUYERS, "{:?}", world.log());
}

fn in_slots_it_never_does(backend: Backend) {
    let world = shop(backend, PAY_WHEN_FIVE_ARE_IN);
    for segment in 0..SEGMENTS {
        let pieces = STOCK / SEGMENTS + usize::from(segment < STOCK % SEGMENTS);
        world.write(&format!("stock.{segment}"), &format!("{pieces}\n"));
    }
    let run = format!("{BINARY} run -k stock");
    open(&world, &format!("{run} -n {SEGMENTS} -w -- ./buy-one || {run} -w -- ./buy-one"));
    assert_eq!(sold(&world), STOCK, "{:?}", world.log());
    assert_eq!(world.log().iter().filter(|line| *line == "sold out").count(), BUYERS - STOCK);
    assert_eq!(world.log().len(), BUYERS, "{:?}", world.log());
    assert!((0..SEGMENTS).all(|segment| world.read(&format!("stock.{segment}")).trim() == "0"));
}

fn shop(backend: Backend, pay: &str) -> World {
    let world = World::new(backend);
    world.script("buy", &recipe("buy"));
    world.script("buy-one", &recipe("buy-one"));
    world.script("pay", &format!("#!/bin/sh\n{pay}\n"));
    world.write("stock", &format!("{STOCK}\n"));
    world
}

/// Starts three servers, each of which serves three buyers at once, and waits until all have gone.
fn open(world: &World, purchase: &str) {
    let server = format!("for buyer in 1 2 3; do sh -c '{purchase}' >> log & done; wait");
    let serve = |_| -> Child {
        let mut command = world.command("sh");
        command.args(["-c", &server]).env("DLOCK_STORE", world.url()).stdin(Stdio::null());
        command.spawn().expect("sh")
    };
    for mut server in (0..BUYERS / 3).map(serve).collect::<Vec<_>>() {
        assert!(server.wait().expect("a server").success());
    }
}

fn sold(world: &World) -> usize {
    world.log().iter().filter(|line| *line == "sold").count()
}

/// A script as it is printed in docs/recipes.md.
fn recipe(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let page = fs::read_to_string(page).expect("docs/recipes.md");
    let from = page.find(&format!("#!/bin/sh\n# {name}:")).expect("the script is there");
    let script = &page[from..];
    script[..script.find("```").expect("the block ends")].to_owned()
}
