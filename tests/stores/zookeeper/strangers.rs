//! Nodes that a stranger created, or that others than dlock's user may change.

use super::{JOB, as_user, own_server};
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use std::time::Duration;

const LOGIN: &str = "addauth digest app:s3cret\n";

/// The root of an ensemble is open to everybody by default. Nodes that everybody may change are
/// refused until they are given to dlock's user as the message says.
#[test]
fn nodes_that_anybody_may_change_are_refused() {
    let (world, server) = own_server(&[]);
    let run = |chroot: &str, status| {
        let run = world.run("k", &[], &format!("echo {chroot} >> log"));
        as_user(run, &server.url(chroot), "app", "s3cret").status(status).any_stderr().run().stderr
    };
    for path in ["/a", "/a/dlock", "/a/dlock/locks"] {
        assert_eq!(server.create_open(path), 0, "a stranger creates {path}");
    }
    let cases = [
        ("/a", "", "world:anyone"),
        ("/b", "", "ip:127.0.0.0/8:d"),
        ("/c", "/locks", "world:anyone:c"),
        ("/d", "/lives", "world:anyone:d"),
        ("/e", "/clock", "world:anyone:w"),
        ("/f", "/locks/dlock:k", "ip:127.0.0.1:a"),
    ];
    for (chroot, ..) in &cases[1..] {
        run(chroot, 0);
    }
    let opened = cases[1..]
        .iter()
        .map(|(chroot, node, who)| format!("setAcl {chroot}/dlock{node} auth::cdrwa,world:anyone:r,{who}\n"));
    server.script(&(LOGIN.to_owned() + &opened.collect::<String>()));
    for (chroot, node, who) in &cases {
        let said = run(chroot, 77);
        let shown = who.rsplit_once(':').filter(|(who, _)| who.contains(':')).map_or(*who, |(who, _)| who);
        assert!(said.contains(&format!("{shown} may change {chroot}/dlock{node}, ")), "{said}");
        assert!(said.contains("addauth digest app:PASSWORD") && !said.contains("s3cret"), "{said}");
        assert!(said.contains(&format!("setAcl -R {chroot}/dlock auth::cdrwa")), "{said}");
        for command in
            [&["status"][..], &["status", "k"], &["release", "-y", "k"], &["wait", "-w", "1s", "k"]]
        {
            let dlock = as_user(world.dlock(command), &server.url(chroot), "app", "s3cret");
            let said = dlock.spawn().output();
            // A list alone reads no lock.
            let is_list = command == ["status"] && node.contains("dlock:k");
            assert!(is_list || said.stderr.contains(" may change "), "{command:?}: {said:?}");
        }
        let doctor = as_user(world.dlock(["doctor"]), &server.url(chroot), "app", "s3cret").spawn().output();
        assert!(node.contains("dlock:k") || doctor.stdout.contains(" may change "), "{}", doctor.stdout);
    }
    assert_eq!(world.log(), ["/b", "/c", "/d", "/e", "/f"]);
    let mended = cases.map(|(chroot, ..)| format!("setAcl -R {chroot}/dlock auth::cdrwa\n")).concat();
    server.script(&(LOGIN.to_owned() + &mended));
    cases.iter().for_each(|(chroot, ..)| drop(run(chroot, 0)));
    let url = server.url("/a");
    let doctor = as_user(world.dlock(["doctor"]), &url, "app", "s3cret").spawn().output().stdout;
    assert!(doctor.contains("all that locks need") && !doctor.contains("may change"), "{doctor}");
    // Without a user the nodes are open, as ever.
    world.run("k", &["--store", &server.url("/open")], "true").run();
    let doctor = world.dlock(["doctor", "--store", &server.url("/open")]).spawn().output().stdout;
    assert!(doctor.contains("all that locks need") && !doctor.contains("may change"), "{doctor}");
}

/// `doctor` names another user who has rights to the nodes.
#[test]
fn another_user_with_rights_is_named() {
    let (world, server) = own_server(&[]);
    let url = server.url("/ops");
    let ours = |dlock| as_user(dlock, &url, "app", "s3cret");
    ours(world.run("k", &[], "true")).run();
    let theirs = "addauth digest ops:other\naddauth digest app:another\n";
    server.script(&format!("{LOGIN}{theirs}setAcl /ops/dlock/locks auth::cdrwa\n"));
    ours(world.run("k", &[], "true")).run();
    let doctor = ours(world.dlock(["doctor"])).any_stdout().any_stderr().run().stdout;
    let said = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("digest:app, digest:ops may change dlock's nodes, too"), "{doctor}");
    assert!(said.contains("all that locks need") && !said.contains("bad"), "{doctor}");
}

/// The stranger creates the nodes after dlock has found none, and before it creates its own.
#[test]
fn a_stranger_who_is_quicker_is_noticed() {
    let (world, server) = own_server(&[]);
    for (chroot, command) in [("/a", "run"), ("/b", "status")] {
        let proxy = Proxy::before(server.port());
        let url = server.url(chroot).replace(&server.port().to_string(), &proxy.port().to_string());
        let slow = ["--connect-timeout", "20s", "--op-timeout", "20s"];
        let dlock = match command {
            "run" => world.run("k", &slow, "echo ran >> log"),
            _ => world.dlock([&["status", "k"], &slow[..]].concat()).any_stdout(),
        };
        proxy.delay_replies(Duration::from_secs(1));
        let dlock = as_user(dlock, &url, "app", "s3cret").status(77).any_stderr().spawn();
        // The beginning of the session, the login, and the first requests.
        wait_until("it looks for its nodes", || proxy.seen() >= 3);
        for node in ["", "/dlock", "/dlock/locks", "/dlock/lives"] {
            assert_eq!(server.create_open(&format!("{chroot}{node}")), 0, "the stranger is quicker");
        }
        let said = dlock.finish().stderr;
        assert!(said.contains(&format!("world:anyone may change {chroot}/dlock, ")), "{said}");
    }
    assert_eq!(world.log(), [""; 0]);
}

/// The lock that the stranger would delete.
#[test]
fn a_stranger_cannot_delete_a_held_lock() {
    let (world, server) = own_server(&[]);
    let url = server.url("");
    let holder = as_user(world.run("k", &[], JOB), &url, "app", "s3cret").any_stderr().spawn();
    world.wait_for_log("up");
    let said =
        server.script("deleteall /dlock\nsetAcl -R /dlock world:anyone:cdrwa\ncreate /dlock/locks/x\n");
    let again = as_user(world.run("k", &[], "echo twice >> log"), &url, "app", "s3cret");
    again.status(75).any_stderr().run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"], "{said}");
}
