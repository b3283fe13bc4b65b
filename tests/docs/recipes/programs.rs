//! The program of the recipes in Python, and redis-py's lock beside dlock's.

use super::{blocks, on_a_machine};
use crate::support::wait::wait_until;
use crate::support::world::World;

/// The program of the page writes under the lock, passes on its status, and leaves nothing behind.
/// It changes nothing if a newer holder has written, or an operator took the lock away.
#[test]
fn a_program_in_python_holds_a_lock() {
    let name = "import.py";
    let program = blocks("python").into_iter().find(|block| block.contains(name)).expect("a program");
    let world = World::with_redis(&[]);
    world.write(name, program);
    let run = || on_a_machine(&world, &format!("exec /usr/bin/python3 {name} 2> messages")).status();
    let run = || run().expect("a shell").code();
    let sql = |words: &str| {
        let output = world.command("sqlite3").args(["import.db", words]).output().expect("sqlite3");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    sql("CREATE TABLE total (rows, fence); INSERT INTO total VALUES (0, 0)");
    world.script("fetch", "#!/bin/sh\ndlock status import --json | grep -q '\"held\"' && echo 7\n");
    assert_eq!(run(), Some(0), "{name}: {}", world.read("messages"));
    assert_eq!(sql("SELECT rows, fence FROM total"), format!("7|{}", world.fence("import")), "{name}");
    assert_eq!(world.state("import"), "free", "{name}");

    let holder = world.run("import", &[], "touch up; until test -e go; do sleep 0.1; done").spawn();
    wait_until("it is held", || world.path("up").exists());
    assert_eq!(run(), Some(75), "{name}");
    assert!(world.read("messages").contains("dlock: import in "), "{}", world.read("messages"));
    world.write("go", "");
    holder.finish();

    world.script("fetch", "#!/bin/sh\ndlock release import --force --now -y 2> /dev/null; echo 8\n");
    assert_eq!(run(), Some(79), "{name}");

    world.script("fetch", "#!/bin/sh\necho 9\n");
    sql("UPDATE total SET fence = 1e18");
    assert_eq!(run(), Some(1), "{name}");
    assert!(world.read("messages").contains("a newer holder has written"), "{}", world.read("messages"));
    assert_eq!((sql("SELECT rows FROM total"), world.state("import")), ("7".into(), "free".into()));
}

/// dlock's lock and redis-py's lock of the same name exclude each other.
#[test]
fn the_lock_of_redis_py_and_dlocks_exclude_each_other() {
    let program = blocks("python").into_iter().find(|block| block.contains(".lock(")).expect("a program");
    let world = World::with_redis(&[]);
    let load = "import os, time\ndef load():\n    open('log', 'a').write('theirs\\n')\n    \
                while not os.path.exists('go'):\n        time.sleep(0.02)\n    open('log', 'a').write('end\\n')\n";
    world
        .write("load.py", &format!("{load}{}", program.replace("redis://redis.internal:6379", &world.url())));
    let start =
        || on_a_machine(&world, "exec /usr/bin/python3 load.py 2> messages").spawn().expect("a shell");
    let mut theirs = start();
    world.wait_for_log("theirs");
    let busy = world.run("import", &[], "echo ours >> log").status(75).any_stderr().run().stderr;
    assert!(busy.contains("import"), "{busy}");
    assert_eq!(world.status("import")["holders"][0]["foreign"], true);
    let waiter = world.run("import", &["-w"], "echo ours >> log; until test -e on; do sleep 0.1; done");
    let waiter = waiter.any_stderr().spawn();
    world.wait_for_waiters("import", 1);
    world.write("go", "");
    assert!(theirs.wait().expect("a child").success(), "{}", world.read("messages"));
    world.wait_for_log("ours");
    // redis-py polls ten times a second, and is not granted the lock.
    let mut theirs = start();
    let asked = || world.redis().ask::<String>(&["INFO", "commandstats"]).matches("cmdstat_set:").count();
    wait_until("redis-py has asked", || asked() > 0);
    assert_eq!(world.log(), ["theirs", "end", "ours"]);
    world.write("on", "");
    waiter.finish();
    assert!(theirs.wait().expect("a child").success(), "{}", world.read("messages"));
    assert_eq!(world.log(), ["theirs", "end", "ours", "theirs", "end"]);
}
