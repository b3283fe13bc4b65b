//! MySQL and MariaDB: rights that are taken away, odd settings, full servers; and which logins are
//! accepted: passwords, TLS, sockets, the least rights. What is the same on every database is in
//! `databases`.

mod transactions;

use crate::stores::databases::{JOB, is_of_use};
use crate::support::certificates::Authority;
use crate::support::database::refused;
use crate::support::dlock::{Dlock, finish_all};
use crate::support::mysql::Mysql;
use crate::support::proxy::Proxy;
use crate::support::redis::next_port;
use crate::support::storm::{Wish, storm};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use rustix::process::{Signal, geteuid};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// A key that is no valid table name and needs quoting.
const KEY: &str = "it's a \"key\" \\ über%";

/// A world with a server of its own.
fn own_server(options: &[&str]) -> (World, Mysql) {
    World::with_server(|home| Mysql::start(home, options), |server| server.url("ops"))
}

#[test]
fn a_refusal_of_the_server_is_reported() {
    let (world, server) = own_server(&[]);
    world.run("k", &[], "true").run();
    let set = |text: &str| drop(server.ask("ops", &format!("SET GLOBAL {text}")));
    set("read_only = 1");
    assert!(refused(&world, 69).contains("read-only"), "read-only");
    set("read_only = 0");
    // Another session has locked the row, and statements may not wait for it, or not for long.
    let hog = Hog::with(&server, "root", "SELECT * FROM dlock_locks FOR UPDATE");
    let said = refused(&world, 69);
    assert!(said.contains("has locked the rows"), "{said}");
    set("max_statement_time = 0.2");
    let said = refused(&world, 69);
    assert!(said.contains("cancelled a statement"), "{said}");
    drop(hog);
    set("max_statement_time = 0");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["well"]);
}

/// A name may mean a proxy: nothing that wakes a waiter depends on the server behind it.
#[test]
fn a_long_queue_behind_a_proxy_is_served_in_order() {
    let world = World::with_mysql();
    let port = Mysql::shared().port();
    let proxy = Proxy::before(port);
    let url = world.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let all = 30;
    let jobs = (0..all).map(|number| format!("echo {number} >> log"));
    let queue = world.queue("k", &["-w", "-t", "1m", "--store", &url], jobs);
    world.write("go", "");
    holder.finish();
    finish_all(queue);
    let served: Vec<_> = (0..all).map(|number| number.to_string()).collect();
    assert_eq!(world.log()[2..], served);
}

/// A server whose disk is full can lose a row that a write makes longer, and with it a held lock. The
/// nights fill a disk; here each state of a lock must have one length.
#[test]
fn the_row_of_a_lock_keeps_its_length() {
    let (world, server) = own_server(&["innodb-flush-log-at-trx-commit=2"]);
    let lengths = || server.ask("ops", "SELECT DISTINCT LENGTH(body) FROM dlock_locks WHERE kind = 0");
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    assert_eq!(lengths().trim(), "4096", "held");
    let queue = world.queue("k", &["-w", "-t", "1m"], (0..30).map(|_| "true".to_owned()));
    assert_eq!(lengths().trim(), "4096", "with 30 waiters");
    world.write("go", "");
    holder.finish();
    finish_all(queue);
    assert_eq!(lengths().trim(), "4096", "free, and with a history");
}

/// A list of all locks may take long, and the time for it is ten times that of a request.
#[test]
fn a_server_that_hangs_is_reported_within_the_time_of_a_request() {
    let (world, server) = own_server(&[]);
    world.run("k", &[], "true").run();
    server.signal(Signal::STOP);
    for words in [&["status"][..], &["metrics"], &["history", "k*"], &["wait", "k*"], &["resume", "k*"]] {
        let times = ["--connect-timeout", "1s", "--op-timeout", "1s"];
        let asked = world.dlock([words, &times].concat()).status(69).any_stdout().any_stderr().spawn();
        asked.finish_within(Duration::from_secs(15));
    }
    server.signal(Signal::CONT);
    world.dlock(["status"]).any_stdout().run();
}

/// A holder keeps its lock meanwhile.
#[test]
fn too_many_clients_are_an_outage() {
    let (world, server) = own_server(&["max_connections=10"]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let mut hogs = Vec::new();
    wait_until("nobody gets in any more", || {
        hogs.push(Hog::try_with(&server, "app", "SELECT 1"));
        hogs.last().is_some_and(Option::is_none)
    });
    let said = world.run("other", &["--op-timeout", "5s"], "true").status(69).any_stderr().run().stderr;
    assert!(said.contains("too many clients"), "{said}");
    drop(hogs);
    wait_until("there is room again", || Hog::try_with(&server, "app", "SELECT 1").is_some());
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

/// No server setting changes how locks behave.
#[test]
fn odd_settings_change_nothing() {
    let (world, server) = own_server(&[
        "transaction-isolation=SERIALIZABLE",
        "autocommit=0",
        "default-time-zone=+05:45",
        "sql-mode=ORACLE,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH",
        "character-set-server=latin1",
        "collation-server=latin1_german2_ci",
        "lower-case-table-names=1",
        "init-connect=SET sql_select_limit = 1, sql_safe_updates = 1, big_tables = 1, timestamp = 1000000000, \
         character_set_results = ucs2",
        "default-storage-engine=MyISAM",
        "log-bin",
        "binlog-format=MIXED",
    ]);
    server.ask("ops", "SET GLOBAL sql_select_limit = 1");
    world.run(KEY, &["--reason", "it's \\ so"], "echo $DLOCK_KEY > key").run();
    assert_eq!(world.read("key"), format!("{KEY}\n"));
    assert_eq!(world.status(KEY)["key"], KEY);
    world.run("K", &[], "true").run();
    assert!(world.status("k")["fence"].is_null(), "K is another key than k");
    let wishes = [
        Wish { keys: &["k"], options: &[], kind: "alone" },
        Wish { keys: &["k"], options: &["--shared"], kind: "shared" },
        Wish { keys: &["k", "l"], options: &[], kind: "alone" },
    ];
    storm(&world, 6, 4, &wishes);
    let engine = "SELECT engine FROM information_schema.tables WHERE table_name = 'dlock_locks'";
    assert_eq!(server.ask("ops", engine), "InnoDB");
}

#[test]
fn the_least_rights_are_enough() {
    let world = World::with_mysql();
    let (server, database) = (Mysql::shared(), world.database());
    let user = format!("least_{database}");
    server.ask(database, &format!("CREATE USER {user}@'%'"));
    let url = world.url().replace("app@", &format!("{user}@"));
    let least = |words: &[&str]| world.dlock(words).env("DLOCK_STORE", &url).any_stderr().any_stdout();
    // The message says what an administrator has to do, whether the user may see the database or
    // not. Then that is done.
    let unseen = least(&["run", "-k", "k", "--", "true"]).status(77).run().stderr;
    server.ask(database, &format!("GRANT SELECT ON {database}.* TO {user}@'%'"));
    let said = least(&["run", "-k", "k", "--", "true"]).status(77).run().stderr;
    assert!([unseen, said].iter().all(|said| said.contains("'dlock doctor --sql'")));
    server.ask(database, &least(&["doctor", "--sql"]).run().stdout);
    let said = least(&["run", "-k", "k", "--", "true"]).status(77).run().stderr;
    assert!(said.contains("denie") && said.contains("INSERT"), "{said}");
    server.ask(database, &format!("REVOKE SELECT ON {database}.* FROM {user}@'%'"));
    let documented = include_str!("../../docs/stores.md");
    let grant =
        documented.lines().find(|line| line.starts_with("GRANT SELECT") && line.contains("dlock_locks TO"));
    let grant = grant.expect("docs/stores.md has the line").replace("dlock.dlock_", "dlock_");
    server.ask(database, &grant.replace(" TO dlock@", &format!(" TO {user}@")));
    is_of_use(&world, &url);
    server.ask(database, &format!("DROP USER {user}@'%'"));
}

/// A waiter is a row, and a user who may not delete rows would leave it there for ever.
#[test]
fn a_user_without_delete_does_not_wait() {
    let world = World::with_mysql();
    let (server, database) = (Mysql::shared(), world.database());
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let user = format!("keeper_{database}");
    server.ask(
        database,
        &format!("CREATE USER {user}@'%'; GRANT SELECT, INSERT, UPDATE ON dlock_locks TO {user}@'%'"),
    );
    let url = world.url().replace("app@", &format!("{user}@"));
    let said = world.run("k", &["-w", "--store", &url], "true").status(77).any_stderr().run().stderr;
    assert!(said.contains("denies") && said.contains("DELETE") && said.contains("GRANT"), "{said}");
    let rows = "SELECT COUNT(*) FROM dlock_locks WHERE kind = 1";
    assert_eq!(server.ask(database, rows), "0");
    world.write("go", "");
    holder.finish();
    server.ask(database, &format!("DROP USER {user}@'%'"));
}

#[test]
fn each_kind_of_login_is_accepted_or_refused() {
    let (world, server) = own_server(&[]);
    let rights = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON ops.* TO";
    server.ask("ops", &format!("CREATE USER native@'%' IDENTIFIED BY 'sesame'; {rights} native@'%'"));
    world.write("right", "sesame\n");
    world.write("wrong", "sesam\n");
    let at = |user: &str| world.url().replace("app@", &format!("{user}@"));
    let socket = |user: &str| format!("mysql+unix://{user}@{}?db=ops", server.socket().display());
    let run = |file: Option<&str>| {
        let run = world.run("k", &["--store", &socket("native")], "true").any_stderr();
        match file {
            Some(file) => run.env("DLOCK_PASSWORD_FILE", world.path(file)),
            None => run.env("MYSQL_PWD", "sesame"),
        }
    };
    run(Some("right")).run();
    let said = run(Some("wrong")).status(77).run().stderr;
    assert!(said.contains("refused the user name or the password") && !said.contains("sesam"), "{said}");
    let said = run(None).status(77).run().stderr;
    assert!(said.contains("wants a password"), "{said}");
    // If any program may listen on the port, dlock sends no proof of the password.
    let open = world.run("k", &["--store", &at("native")], "true").env("DLOCK_PASSWORD", "sesame");
    let said = open.status(77).any_stderr().run().stderr;
    assert!(said.contains("no TLS") && said.contains("mysql+unix") && said.contains("sslmode"), "{said}");
    assert!(said.contains("sslmode=disable"), "the last way out: {said}");
    let clear = |user: &str| format!("{}?sslmode=disable", at(user));
    let run = world.run("k", &["--store", &clear("native")], "true").env("DLOCK_PASSWORD", "sesame");
    run.run();
    let run = world.run("k", &["--store", &clear("native")], "true").env("DLOCK_PASSWORD", "sesam");
    assert!(run.status(77).any_stderr().run().stderr.contains("refused the user name"), "a wrong one");
    // An authentication method that dlock does not know.
    if server.try_ask("ops", "INSTALL SONAME 'auth_ed25519'").is_ok() {
        server.ask("ops", "CREATE USER ed@'%' IDENTIFIED VIA ed25519 USING PASSWORD('sesame')");
        let ed = world.run("k", &["--store", &socket("ed")], "true").env("DLOCK_PASSWORD", "sesame");
        assert!(ed.status(77).any_stderr().run().stderr.contains("asks for a login method"), "ed25519");
    }
    // The kernel may identify the user.
    world.run("k", &["--store", &socket("app")], "true").any_stderr().run();
    if geteuid().is_root() {
        server.ask("ops", "ALTER USER root@localhost IDENTIFIED VIA unix_socket");
        world.run("k", &["--store", &socket("root")], "true").any_stderr().run();
    }
    let nobody = world.url().replace("app@", "");
    let said = world.run("k", &["--store", &nobody], "true").status(78).any_stderr().run().stderr;
    assert!(said.contains("no user is set"), "{said}");
    let nowhere = world.url().replace("/ops", "/none");
    let said = world.run("k", &["--store", &nowhere], "true").status(78).any_stderr().run().stderr;
    assert!(said.contains("no such database"), "{said}");
}

#[test]
fn a_server_is_trusted_as_over_rediss() {
    let (mut world, mut server) = own_server(&[]);
    let port = server.port();
    let url = |rest: &str| format!("mysql://app@localhost:{port}/ops?sslmode=verify-full{rest}");
    fn run<'w>(world: &'w World, url: &str) -> Dlock<'w> {
        world.run("k", &["--store", url, "-t", "20s"], "echo ran >> log").any_stderr()
    }
    let said = run(&world, &url("")).status(69).run().stderr;
    assert!(said.contains("has no TLS"), "{said}");
    server.stop(Signal::TERM);
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    authority.write(&world.path("ca.pem"));
    stranger.write(&world.path("other.pem"));
    authority.issue(&["localhost"]).write(&server.data(), "server");
    let file = |name: &str| server.data().join(name).display().to_string();
    let shown = [format!("ssl-cert={}", file("server.pem")), format!("ssl-key={}", file("server.key"))];
    server.add_options(&shown.each_ref().map(String::as_str));
    server.run();
    let ours = url(&format!("&ca={}", world.path("ca.pem").display()));
    server.ask("ops", "ALTER USER app@'%' REQUIRE SSL");
    world.use_store(ours.clone());
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
    let theirs = url(&format!("&ca={}", world.path("other.pem").display()));
    assert!(run(&world, &theirs).status(69).run().stderr.contains("cannot trust"), "an unknown authority");
    let other = ours.replace("localhost", "127.0.0.1");
    assert!(run(&world, &other).status(69).run().stderr.contains("is for localhost"), "another name");
    run(&world, &url("").replace("verify-full", "disable")).status(77).run();
}

/// What MySQL 8 says first. The name of the login method follows.
const GREETING: &[u8] =
    b"\x0a8.0.0\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\xff\xff\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0";

/// Serves one client with a greeting and these answers. Returns the port, and what the client says.
fn forged(plugin: &str, answers: Vec<Vec<u8>>) -> (u16, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let greeting = [GREETING, plugin.as_bytes(), b"\0"].concat();
    let server = thread::spawn(move || {
        let (mut heard, mut stream) = (Vec::new(), listener.accept().unwrap().0);
        drop(listener);
        let send = |stream: &mut std::net::TcpStream, number: u8, body: &[u8]| {
            let head = [u8::try_from(body.len()).unwrap(), 0, 0, number];
            stream.write_all(&[&head[..], body].concat()).ok();
        };
        send(&mut stream, 0, &greeting);
        for (at, answer) in answers.iter().enumerate() {
            let mut head = [0; 4];
            stream.read_exact(&mut head).unwrap();
            let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
            stream.read_exact(&mut body).unwrap();
            heard.extend(body);
            send(&mut stream, if at == 0 { 2 } else { 1 }, answer);
        }
        stream.read_to_end(&mut heard).ok();
        heard
    });
    (port, server)
}

/// A forged server gets neither a password nor a file.
#[test]
fn a_forged_server_learns_nothing() {
    let world = World::without_redis();
    let (fine, file) = (b"\0\0\0\x02\0\0\0".to_vec(), b"\xfb/etc/hostname".to_vec());
    // A server that could ask for a proof of the password gets none.
    for (plugin, password, answers, status, what) in [
        ("mysql_native_password", "sesame", vec![], 77, "asks for a proof of the password"),
        ("caching_sha2_password", "sesame", vec![], 77, "asks for a proof of the password"),
        ("mysql_native_password", "", vec![fine, file], 69, "does not speak the protocol"),
    ] {
        let (port, server) = forged(plugin, answers);
        let url = format!("mysql://app@127.0.0.1:{port}/ops");
        let run = world.run("k", &["--store", &url], "echo ran >> log");
        let run = if password.is_empty() { run } else { run.env("DLOCK_PASSWORD", password) };
        let said = run.status(status).any_stderr().run().stderr;
        assert!(said.contains(what), "{said}");
        let heard = String::from_utf8_lossy(&server.join().unwrap()).into_owned();
        let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
        assert_eq!(heard.is_empty(), !password.is_empty(), "{heard}");
        assert!(!heard.contains("sesame"), "{heard}");
        assert!(name.trim().is_empty() || !heard.contains(name.trim()), "{heard}");
    }
    assert!(world.log().is_empty());
}

/// A MySQL 8 without TLS that does not know the user yet asks for more than the proof (1, 4: "perform
/// full authentication"), and would take the password encrypted with its RSA key. It gets no
/// password, and the user reads what to do.
#[test]
fn a_password_is_not_sent_in_clear_to_a_server_that_wants_it_encrypted() {
    let world = World::without_redis();
    let (port, server) = forged("caching_sha2_password", vec![vec![1, 4]]);
    let url = format!("mysql://app@127.0.0.1:{port}/ops?sslmode=disable");
    let run = world.run("k", &["--store", &url], "echo ran >> log").env("DLOCK_PASSWORD", "sesame");
    let said = run.status(77).any_stderr().run().stderr;
    for part in ["encrypted with its RSA key", "sslmode=verify-ca&ca=FILE", "mysql+unix://"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
    let heard = String::from_utf8_lossy(&server.join().unwrap()).into_owned();
    assert!(heard.contains("app") && !heard.contains("sesame"), "{heard}");
    assert!(world.log().is_empty());
}

/// Several nodes of Galera are refused. One is as good as any MariaDB.
#[test]
fn several_nodes_of_galera_are_refused() {
    let group = format!("wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:{}", next_port());
    let (world, server) = own_server(&[
        "wsrep_on=ON",
        "wsrep_provider=/usr/lib/galera/libgalera_smm.so",
        "wsrep_cluster_address=gcomm://",
        "wsrep_node_address=127.0.0.1",
        "binlog_format=ROW",
        &group,
    ]);
    let one = world.url().to_owned();
    let several = one.replace(&format!(":{}/", server.port()), &format!(":{},127.0.0.1:1/", server.port()));
    assert_ne!(one, several);
    world.run("k", &[], "echo ran >> log").run();
    let run = world.run("k", &["--store", &several], "echo ran >> log");
    let said = run.status(78).any_stderr().run().stderr;
    assert!(said.contains("name one node alone") && said.lines().count() == 1, "{said}");
    assert_eq!(world.log(), ["ran"]);
    let said = world.dlock(["doctor", "--store", &several]).status(69).any_stdout().any_stderr().run();
    assert!(said.stdout.contains("Galera"), "{}", said.stdout);
}

/// A session that holds a database lock until it is dropped.
struct Hog {
    child: Child,
}

impl Hog {
    fn with(server: &Mysql, user: &str, statement: &str) -> Self {
        Self::try_with(server, user, statement).expect("the server lets it in")
    }

    /// The same. Returns None if the server refuses the login.
    fn try_with(server: &Mysql, user: &str, statement: &str) -> Option<Self> {
        let mut client = server.client(user);
        client.args(["-D", "ops"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut hog = Self { child: client.spawn().expect("mariadb") };
        hog.say(&format!("BEGIN; {statement}; SELECT 'locked'"));
        let mut lines = BufReader::new(hog.child.stdout.take()?).lines();
        wait_for("the lock", || match lines.next() {
            Some(Ok(line)) if line == "locked" => Some(Some(hog.child.id())),
            Some(_) => None,
            None => Some(None),
        })?;
        Some(hog)
    }

    fn say(&self, statement: &str) {
        let mut stdin = self.child.stdin.as_ref().expect("a pipe");
        drop(stdin.write_all(format!("{statement};\n").as_bytes()));
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
