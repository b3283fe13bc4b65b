//! Which servers and files dlock trusts, and where it sends a password: what docs/security.md says
//! and no other file tests.

use crate::support::dlock::BINARY;
use crate::support::world::World;
use std::net::{TcpListener, UdpSocket};

/// The hosts file maps localhost to an address that is not only this machine's, and a program
/// listens there.
#[test]
fn a_localhost_that_is_another_machine_receives_nothing() {
    let namespace = ["unshare", "--mount", "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$@\"", "sh"];
    let world = World::without_redis();
    world.write("hosts", "");
    let may = world.command(namespace[0]).args(&namespace[1..]).arg("true").output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not mount anything");
        return;
    }
    // This sends no packet; it returns this machine's address on the way to another one.
    let other = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("203.0.113.9:9")?;
        Ok(socket.local_addr()?.ip())
    });
    let Some(other) = other.ok().filter(|other| !other.is_loopback()) else {
        eprintln!("skipped: this machine has no address but its loopback");
        return;
    };
    world.write("hosts", &format!("{other} localhost\n"));
    let listener = TcpListener::bind((other, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stores = [
        format!("redis://u:hush@localhost:{port}"),
        format!("redis+cluster://u:hush@localhost:{port}"),
        #[cfg(feature = "postgres")]
        format!("postgres://u:hush@localhost:{port}/d"),
        #[cfg(feature = "postgres")]
        format!("postgres://u:hush@localhost:{port}/d?sslmode=disable"),
        #[cfg(feature = "mysql")]
        format!("mysql://u:hush@localhost:{port}/d"),
        #[cfg(feature = "etcd")]
        format!("etcd://u:hush@localhost:{port}"),
        #[cfg(feature = "zookeeper")]
        format!("zookeeper://u:hush@localhost:{port}"),
    ];
    listener.set_nonblocking(true).expect("a socket");
    for store in stores {
        let run = world.run("k", &["-w", "--store", &store], "echo ran >> log").under(&namespace);
        let said = run.status(69).any_stderr().run().stderr;
        let why = format!("the name localhost leads to {other}, which is another machine");
        assert!(said.contains(&why) && !said.contains("hush"), "{store}: {said}");
        assert!(listener.accept().is_err(), "{store}: somebody connected");
    }
    assert!(!world.path("log").exists());
}

/// Needs strace(1) and the right to trace. The job outlasts some renewals, and the run waits for
/// another run first.
#[test]
fn dlock_connects_to_the_store_only() {
    let world = World::with_redis(&[]);
    let traced = |options: &str| {
        let command = format!(
            "exec strace -f -qq -e trace=connect,sendto,sendmsg,sendmmsg -o calls {BINARY} run -k k -t 1s {options} -- sleep 1.5"
        );
        let mut shell = world.command("sh");
        shell.args(["-c", &command]).env("DLOCK_STORE", world.url()).env_remove("LD_LIBRARY_PATH");
        shell.output().is_ok_and(|output| output.status.success()).then(|| world.read("calls"))
    };
    let holder = world.run("k", &[], "echo up >> log; sleep 1").spawn();
    world.wait_for_log("up");
    let Some(calls) = traced("--wait") else {
        eprintln!("skipped: there is no strace here, or no leave to trace");
        return;
    };
    holder.finish();
    let connects = calls.lines().filter(|line| line.contains("connect(")).collect::<Vec<_>>();
    let store = format!("sin_port=htons({}), sin_addr=inet_addr(\"127.0.0.1\")", world.redis().port());
    assert!(connects.iter().any(|line| line.contains(&store)), "{calls}");
    assert!(connects.iter().all(|line| line.contains(&store)), "{connects:?}");
    // The other way to send to an address is a message without a connection.
    assert!(!calls.lines().any(|line| line.contains("send") && line.contains("sa_family=")), "{calls}");
}
