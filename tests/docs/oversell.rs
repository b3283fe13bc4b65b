//! Why there are locks, shown by the example of docs/recipes.md itself: nine buyers on three servers, a stock of seven in
//! a plain file. Without a lock more is sold than there is; under `dlock run` never, nor with the stock in five segments and a
//! slot for each. That this is faster is measured elsewhere (benches/oversell.sh).

use crate::support::dlock::BINARY;
use crate::support::world::{Backend, World, on_every_store};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

on_every_store!(without_a_lock_it_oversells, under_a_lock_it_never_does, in_slots_it_never_does);

const STOCK: usize = 7;
const BUYERS: usize = 9;
const SEGMENTS: usize = 5;

/// The race is made, not hoped for: between reading the stock and writing it, a buyer waits until all have read it.
const PAY_WHEN_ALL_HAVE_READ: &str = "
    : > read.$$
    while [ $(ls read.* | wc -l) -lt 9 ]; do sleep 0.01; done";

/// Under a lock all cannot be there at once. All want to be: the first buyer pays when eight others are at the door, and
/// whoever got in beside another would be seen, and would have read an old stock.
const PAY_WHEN_ALL_HAVE_COME: &str = "
    mkdir inside || echo 'not alone' >> log
    while [ $(ls come.* | wc -l) -lt 9 ]; do sleep 0.01; done
    sleep 0.1
    rmdir inside";

/// Five are in at the same time, each in a segment of its own; whoever came in beside another in the same one, or beside one
/// who has them all, would be seen.
const PAY_WHEN_FIVE_ARE_IN: &str = "
    mkdir inside.$DLOCK_SLOT || echo 'not alone' >> log
    [ -n \"$DLOCK_SLOT\" ] || [ \"$(echo inside.*)\" = inside. ] || echo 'not alone' >> log
    : > come.$$
    while [ $(ls come.* | wc -l) -lt 5 ]; do sleep 0.01; done
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

/// Three servers, each of which serves three buyers at once; waits until all have gone.
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

/// A script as it is printed.
fn recipe(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let page = fs::read_to_string(page).expect("docs/recipes.md");
    let from = page.find(&format!("#!/bin/sh\n# {name}:")).expect("the script is there");
    let script = &page[from..];
    script[..script.find("```").expect("the block ends")].to_owned()
}
