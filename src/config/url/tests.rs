//! Tests that store URLs are parsed as documented, and that errors do not repeat secrets.

use super::*;

fn tcp(host: &str, port: u16, db: u16) -> Location {
    Location::Tcp { host: at(host, port), db, tls: None }
}

fn at(name: &str, port: u16) -> Host {
    Host { name: name.into(), port }
}

#[test]
fn places() -> Result<(), String> {
    for (text, place, shown) in [
        ("redis://h", tcp("h", 6379, 0), "redis://h:6379"),
        ("redis://h/", tcp("h", 6379, 0), "redis://h:6379"),
        ("REDIS://H.example:1/15", tcp("h.example", 1, 15), "redis://h.example:1/15"),
        ("redis://[::1]", tcp("::1", 6379, 0), "redis://[::1]:6379"),
        ("redis://u:p@[::1]:7/2", tcp("::1", 7, 2), "redis://[::1]:7/2"),
        (
            "redis+unix:///run/r.sock",
            Location::Unix { path: "/run/r.sock".into(), db: 0 },
            "redis+unix:///run/r.sock",
        ),
        ("redis+unix:///a%20b?db=3", Location::Unix { path: "/a b".into(), db: 3 }, "redis+unix:///a b?db=3"),
        ("file:/var/lib/dlock/", Location::File { dir: "/var/lib/dlock".into() }, "file:/var/lib/dlock"),
        ("file:///tmp//x/./y", Location::File { dir: "/tmp/x/y".into() }, "file:/tmp/x/y"),
    ] {
        let url = parse(text)?;
        assert_eq!(url.place, place, "{text}");
        assert_eq!(url.place.to_string(), shown);
    }
    Ok(())
}

#[test]
fn databases() -> Result<(), String> {
    let of = |dialect, at, name: &str, tls| Location::Database {
        dialect,
        at,
        name: name.into(),
        tls,
        is_clear: false,
    };
    let database = |at, name: &str, tls| of(Dialect::Postgres, at, name, tls);
    let mysql = |at, name: &str, tls| of(Dialect::Mysql, at, name, tls);
    let over_tcp = |host: &str, port| DatabaseAt::Tcp(vec![at(host, port)]);
    let two = DatabaseAt::Tcp(vec![at("localhost", 5432), at("::1", 7)]);
    let mixed = DatabaseAt::Tcp(vec![at("localhost", 3306), at("h", 3306)]);
    let ca = Tls { ca: Some("/f".into()), ..Tls::default() };
    let any_host = Some(Tls { any_host: true, ..ca.clone() });
    for (text, place, shown) in [
        (
            "postgres://u@h/ops",
            database(over_tcp("h", 5432), "ops", Some(Tls::default())),
            "postgres://h:5432/ops",
        ),
        (
            "postgresql://u@h:7/a%20b?sslmode=disable",
            Location::Database {
                dialect: Dialect::Postgres,
                at: over_tcp("h", 7),
                name: "a b".into(),
                tls: None,
                is_clear: true,
            },
            "postgres://h:7/a%20b",
        ),
        (
            "postgres://u@127.0.0.1/d",
            database(over_tcp("127.0.0.1", 5432), "d", None),
            "postgres://127.0.0.1:5432/d",
        ),
        (
            "postgres://u@localhost/d?ca=/f&sslmode=verify-full",
            database(over_tcp("localhost", 5432), "d", Some(ca)),
            "postgres://localhost:5432/d",
        ),
        (
            "postgres://u@h/d?sslmode=verify-ca&ca=/f",
            database(over_tcp("h", 5432), "d", any_host),
            "postgres://h:5432/d",
        ),
        (
            "postgres+unix://u@/run/s?db=d",
            database(DatabaseAt::Unix("/run/s".into()), "d", None),
            "postgres+unix:///run/s?db=d",
        ),
        ("postgres://u@localhost,[::1]:7/d", database(two, "d", None), "postgres://localhost:5432,[::1]:7/d"),
        (
            "mysql://u@localhost,h/d",
            mysql(mixed, "d", Some(Tls::default())),
            "mysql://localhost:3306,h:3306/d",
        ),
        ("mysql://u@h/d", mysql(over_tcp("h", 3306), "d", Some(Tls::default())), "mysql://h:3306/d"),
        ("mariadb://u@[::1]/d", mysql(over_tcp("::1", 3306), "d", None), "mysql://[::1]:3306/d"),
        (
            "mysql+unix://u@/run/s?db=d",
            mysql(DatabaseAt::Unix("/run/s".into()), "d", None),
            "mysql+unix:///run/s?db=d",
        ),
    ] {
        let url = parse(text)?;
        assert_eq!((&url.place, url.username.as_deref()), (&place, Some("u")), "{text}");
        assert_eq!(url.place.to_string(), shown);
        assert_eq!(parse(&with_user(&url.text, "a@b"))?.username.as_deref(), Some("a@b"));
    }
    Ok(())
}

#[test]
fn ensembles() -> Result<(), String> {
    let host = |name: &str, port| Host { name: name.into(), port };
    let tls = || Some(Tls { ca: Some("/ca".into()), ..Tls::default() });
    for (text, servers, chroot, tls, shown) in [
        ("zookeeper://h", vec![host("h", 2181)], "", None, "zookeeper://h:2181"),
        ("zk://h:1,i/", vec![host("h", 1), host("i", 2181)], "", None, "zookeeper://h:1,i:2181"),
        ("zookeeper://u:p@h/a%20b/c", vec![host("h", 2181)], "/a b/c", None, "zookeeper://h:2181/a%20b/c"),
        ("zookeepers://h/a?ca=/ca", vec![host("h", 2281)], "/a", tls(), "zookeepers://h:2281/a"),
    ] {
        let place = Location::ZooKeeper { servers, chroot: chroot.into(), tls };
        assert_eq!(parse(text)?.place, place, "{text}");
        assert_eq!(place.to_string(), shown);
    }
    Ok(())
}

#[test]
fn credentials() -> Result<(), String> {
    for (text, user, password) in [
        ("redis://h", None, None),
        ("redis://u@h", Some("u"), None),
        ("redis://:p@h", None, Some("p")),
        ("redis://u:p@h", Some("u"), Some("p")),
        ("redis://u:a%2Fb%40%3A@h", Some("u"), Some("a/b@:")),
        ("redis://u:a@b:c@h", Some("u"), Some("a@b:c")),
        ("redis+unix://u:p@/s", Some("u"), Some("p")),
    ] {
        let url = parse(text)?;
        assert_eq!(url.username.as_deref(), user, "{text}");
        assert_eq!(url.password.as_ref().map(Secret::expose), password, "{text}");
    }
    Ok(())
}

#[test]
fn several_hosts() -> Result<(), String> {
    let plain = None;
    let three = vec![at("a", 6379), at("b", 7), at("::1", 6379)];
    for (text, place, shown) in [
        (
            "redis+sentinel://A,b:7,[::1]/my.master",
            Location::Sentinel {
                sentinels: vec![at("a", 26379), at("b", 7), at("::1", 26379)],
                master: "my.master".into(),
                db: 0,
                tls: plain.clone(),
            },
            "redis+sentinel://a:26379,b:7,[::1]:26379/my.master",
        ),
        (
            "rediss+sentinel://a/m/3",
            Location::Sentinel {
                sentinels: vec![at("a", 26379)],
                master: "m".into(),
                db: 3,
                tls: Some(Tls::default()),
            },
            "rediss+sentinel://a:26379/m/3",
        ),
        (
            "redis+cluster://a,b:7,[::1]/",
            Location::Cluster { nodes: three.clone(), tls: plain.clone() },
            "redis+cluster://a:6379,b:7,[::1]:6379",
        ),
        (
            "rediss+cluster://u:p@a",
            Location::Cluster { nodes: vec![at("a", 6379)], tls: Some(Tls::default()) },
            "rediss+cluster://a:6379",
        ),
        (
            "redis+quorum://a,b:7,[::1]/2",
            Location::Quorum { nodes: three.clone(), db: 2, tls: plain },
            "redis+quorum://a:6379,b:7,[::1]:6379/2",
        ),
        (
            "rediss+quorum://a,b:7,[::1]",
            Location::Quorum { nodes: three, db: 0, tls: Some(Tls::default()) },
            "rediss+quorum://a:6379,b:7,[::1]:6379",
        ),
    ] {
        let url = parse(text)?;
        assert_eq!(url.place, place, "{text}");
        assert_eq!(url.place.to_string(), shown);
        assert_eq!(parse(shown)?.place, place, "what is shown names the same place");
    }
    Ok(())
}

#[test]
fn members_of_etcd() -> Result<(), String> {
    let place = |hosts: &[(&str, u16)], prefix: &str, tls: Option<Tls>| Location::Etcd {
        members: hosts.iter().map(|(host, port)| at(host, *port)).collect(),
        prefix: prefix.into(),
        tls,
    };
    let ca = Some(Tls { ca: Some("/f".into()), ..Tls::default() });
    for (text, place, shown) in [
        (
            "etcd://A,b:7,[::1]",
            place(&[("a", 2379), ("b", 7), ("::1", 2379)], "dlock", None),
            "etcd://a:2379,b:7,[::1]:2379",
        ),
        ("etcd://u@h/dlock/", place(&[("h", 2379)], "dlock", None), "etcd://h:2379"),
        ("etcd://u@h/team/a%20b", place(&[("h", 2379)], "team/a b", None), "etcd://h:2379/team/a%20b"),
        ("etcds://u:p@h:1?ca=/f", place(&[("h", 1)], "dlock", ca), "etcds://h:1"),
    ] {
        let url = parse(text)?;
        assert_eq!((&url.place, url.place.to_string().as_str()), (&place, shown), "{text}");
        if place.tls().is_none() {
            assert_eq!(parse(shown)?.place, place, "what is shown names the same place");
        }
    }
    for (text, word) in [
        ("etcd://h?ca=/f", "etcds"),
        ("etcd:h", "//"),
        ("etcd://h/a//b", "slashes"),
        ("etcd://", "host"),
        ("etcd://h?db=1", "db"),
    ] {
        let said = parse(text).err().unwrap_or_default();
        assert!(said.contains(word), "{text}: {said}");
    }
    Ok(())
}

#[test]
fn certificates() -> Result<(), String> {
    let url = parse("rediss://h:1/2?key=/k&ca=/a%20b&cert=/c")?;
    let client = Some(ClientCertificate { cert: "/c".into(), key: "/k".into() });
    let tls = Some(Tls { ca: Some("/a b".into()), client, any_host: false });
    assert_eq!(url.place, Location::Tcp { host: at("h", 1), db: 2, tls });
    assert_eq!(url.place.to_string(), "rediss://h:1/2");
    for (text, word) in [
        ("rediss://h?verify=no", "verify"),
        ("redis://h?ca=/a", "rediss"),
        ("rediss://h?ca=a", "absolute"),
        ("rediss://h?cert=/c", "key="),
        ("rediss://h?key=/c", "cert="),
        ("redis://a,b", "redis+quorum://"),
        ("redis+cluster://h/1", "database 0"),
        ("redis+quorum://a", "at least three"),
        ("redis+quorum://a,b,c,d", "odd"),
        ("redis+quorum://a,b,a:6379", "a:6379"),
        ("redis+sentinel://a", "name of the master"),
    ] {
        let said = parse(text).err().unwrap_or_default();
        assert!(said.contains(word), "{text}: {said}");
    }
    Ok(())
}

/// URLs as platforms and other clients write them: one line says what to write in their place.
#[test]
fn urls_of_other_programs_get_one_line() -> Result<(), String> {
    for (text, instead) in [
        ("valkey://h:6379", "unknown scheme valkey in the store URL; write redis://HOST"),
        ("valkeys://u:SECRET@h", "unknown scheme valkeys in the store URL; write rediss://HOST"),
        ("http://10.0.0.1:2379", "unknown scheme http in the store URL; write etcd://HOST"),
        ("https://h:2379,https://i:2379", "write etcds://HOST"),
        ("mysql2://u:SECRET@h/d", "unknown scheme mysql2 in the store URL; write mysql://USER@HOST/DATABASE"),
        ("mysql+pymysql://u@h/d", "write mysql://USER"),
        ("postgresql+psycopg2://u@h/d", "write postgres://USER"),
        (
            "jdbc:postgresql://h/d?user=u&password=SECRET",
            "unknown scheme jdbc in the store URL; write postgres://USER",
        ),
        ("jdbc:mysql://h/d", "write mysql://USER"),
        ("jdbc:oracle:thin:SECRET@h", "unknown scheme jdbc in the store URL; 'dlock --help' lists the URLs"),
        ("redis-sentinel://h/m", "write redis+sentinel://HOST,…/MASTER"),
        ("unix:///run/r.sock", "write redis+unix:///SOCKET"),
        ("mongodb://h", "unknown scheme mongodb in the store URL; 'dlock --help' lists the URLs"),
        ("db.example:5432", "did you mean postgres://USER@db.example:5432/DATABASE?"),
        ("etcd-0:2379", "did you mean etcd://etcd-0:2379?"),
        ("postgres://u@h/d?channel_binding=require", "no parameter channel_binding=: "),
        ("postgres://u@h/d?connect_timeout=10", "write --connect-timeout"),
        ("postgres://u@h/d?sslrootcert=/f", "write ca=FILE"),
        ("postgres://u@h/d?sslmode=require", "sslmode= is verify-full (the default)"),
        (
            "postgresql:///d?host=/run/postgresql",
            "no host; a socket on this machine is postgres+unix://USER@/SOCKET",
        ),
        ("postgres://u:SECRET@%2Fcloudsql%3Aproject%3Ainst/d", "postgres+unix://"),
        ("postgres://u@localhost/d?host=/cloudsql/p:r:i", "postgres+unix://"),
        ("mysql://u@localhost/d?unix_socket=%2Frun%2Fmysqld%2Fmysqld.sock", "mysql+unix://USER@/SOCKET"),
        ("mysql://u@h/d?ssl-mode=REQUIRED", "sslmode=verify-full by default"),
        ("rediss://h?ssl_cert_reqs=none", "always checks the server's certificate"),
        ("redis://h?db=1", "stands after the host"),
        ("redis://[fe80::1%25eth0]:6379", "zone"),
        ("etcd://[fe80::1%eth0]", "zone"),
        ("etcd://::1:2379", "[::1]:PORT"),
    ] {
        let said = parse(text).err().unwrap_or_default();
        assert!(said.contains(instead) && !said.contains("SECRET"), "{text}: {said}");
        assert!(said.len() < 200, "{text}: {said}");
    }
    for (text, place, names) in [
        (
            "postgres://u@h/d?application_name=a&sslmode=verify-full",
            "postgres://h:5432/d",
            &["application_name"][..],
        ),
        ("redis://h?protocol=3", "redis://h:6379", &["protocol"]),
        ("rediss://h/1?ssl_cert_reqs=required&ca=/f", "rediss://h:6379/1", &["ssl_cert_reqs"]),
        ("mysql://u@h/d?charset=utf8mb4", "mysql://h:3306/d", &["charset"]),
    ] {
        assert_eq!(parse(text)?.place.to_string(), place);
        assert_eq!(ignored(text).collect::<Vec<_>>(), names, "{text}");
    }
    Ok(())
}

#[test]
fn logins_of_sentinels() -> Result<(), String> {
    let url = parse("redis+sentinel://u:p@a/m?sentinel-username=s&sentinel-password-file=/f")?;
    assert_eq!(url.username.as_deref(), Some("u"));
    let login = SentinelLogin { username: Some("s".into()), password_file: "/f".into() };
    assert_eq!(url.sentinel, Some(login));
    assert_eq!(url.place.to_string(), "redis+sentinel://a:26379/m");
    assert_eq!(parse("redis+sentinel://u:p@a/m")?.sentinel, None);
    Ok(())
}

#[test]
fn errors_never_show_the_secret() {
    for text in [
        "",
        "h",
        "h:6379",
        "127.0.0.1:6379",
        "/tmp/x",
        "redis",
        "redis:",
        "redis:h",
        "redis://",
        "redis:///0",
        "redis://:6379",
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:+1",
        "redis://h:x",
        "redis://h/x",
        "redis://h/-1",
        "redis://h/65536",
        "redis://h/0/1",
        "redis://h?db=1",
        "redis://h#f",
        "redis://a,b",
        "postgres://u:SECRET@h,H:5432/d",
        "mysql://u@h,/d",
        "redis://::1",
        "redis://::1:6379",
        "redis://[::1",
        "redis://[::1]x",
        "redis://[x]:1",
        "redis://[]:1",
        "redis://a b",
        " redis://a",
        "redis://a ",
        "redis://a redis://b",
        "redis://a\n",
        "redis://ü",
        "redis://h%41",
        "redis+quorum://a",
        "http://h",
        "valkey://h",
        "unix:///s",
        "redis+unix://s",
        "redis+unix://",
        "redis+unix:///",
        "redis+unix:/s",
        "redis+unix:///s?db=x",
        "redis+unix:///s?x=1",
        "redis+unix:///s#x",
        "file:",
        "file:x",
        "file://h/x",
        "file:./x",
        "file:/x?y",
        "file:/x#y",
        "file:/%zz",
        "file:/%00",
        "file:/%ff",
        "file:/%",
        "file:/%4",
        "file:/%é",
        "redis://@h",
        "redis://:@h",
        "redis://u:@h",
        "redis://u:SECRET/x@h",
        "redis://u:12/SECRET@h",
        "redis://u:SECRET?x@h",
        "redis://u:SECRET#x@h",
        "redis://u:SECRET@h:x",
        "redis://u:SECRET@",
        "redis://u:SECRET@h/x",
        "redis://u:SECRET@h h",
        "redis://u:%SECRET@h",
        "redis+unix:///s?password=SECRET",
        "redis+unix:///s?pass=SECRET",
        "http://u:SECRET@h",
        "u:SECRET@h",
        "SECRET@h:6379",
        "redis:u:SECRET@h",
        "file://u:SECRET@h/x",
        "redis://u:SECRET@h?x=1",
        "redis://u:SECRET@[x",
        "redis://u:SECRET@[x]",
        "redis://u:SECRET@a,b",
        "redis://h?",
        "redis://h?ca=/c",
        "redis+quorum://a,b,c?ca=/c",
        "rediss://h?ca=c",
        "rediss://h?ca=",
        "rediss://h?ca",
        "rediss://h?ca=/a&ca=/a",
        "rediss://h?cert=/c",
        "rediss://h?key=/k",
        "rediss://h?verify=no",
        "rediss://h?db=1",
        "rediss://h?ca=/%00",
        "rediss://u:p@h?ca=/x@SECRET",
        "rediss://u:SECRET?ca=/x@h",
        "rediss://h?password=SECRET",
        "rediss://h?sentinel-username=u&sentinel-password-file=/p",
        "rediss+unix:///s",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel:///m",
        "redis+sentinel://a,/m",
        "redis+sentinel://a/m%20n",
        "redis+sentinel://a/m/x",
        "redis+sentinel://a/m/0/1",
        "redis+sentinel://a/m?sentinel-username=u",
        "redis+sentinel://a/m?sentinel-password=SECRET",
        "redis+sentinel://a/m?sentinel-password-file=p",
        "redis+cluster://",
        "redis+cluster://a,,b",
        "redis+cluster://a/1",
        "redis+quorum://a,b",
        "redis+quorum://a,b,c,d",
        "redis+quorum://u:SECRET@a,b,a",
        "redis+quorum://a,B,b:6379",
        "redis+quorum://a,b,c/x",
    ] {
        match parse(text) {
            Ok(url) => assert!(text.is_empty(), "{text:?} gave {url:?}"),
            Err(said) => {
                assert!(!said.contains("SECRET") && !said.contains('\n'), "{text:?}: {said}");
            }
        }
    }
}

#[test]
fn debug_hides_the_secret() {
    assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(…)");
}
