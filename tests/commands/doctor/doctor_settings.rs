//! What `dlock doctor` finds in the settings: secrets that others can read, and passwords sent
//! unencrypted.

use super::{findings, verdict};
use crate::support::certificates::Certificate;
use crate::support::dlock::Dlock;
use crate::support::world::World;
use rcgen::IsCa;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn settings_are_checked() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    let mode = |name: &str, mode| {
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(mode)).expect("permissions");
    };
    world.write("password", "hush\n");
    world.write("dlock.toml", "password = 'hush'\nttl = '500ms'\n");
    let warns = |found: &[(String, String, Value)]| found.iter().any(|(check, ..)| check == "secrets");
    for (bits, is_open) in [(0o644, true), (0o600, false)] {
        mode("password", bits);
        let doctor = world.dlock(["doctor", "--json", "--password-file", "password"]);
        assert_eq!(warns(&findings(doctor)), is_open);
        mode("dlock.toml", bits);
        let doctor = world.dlock(["doctor", "--json", "--config", "dlock.toml"]);
        let found = findings(doctor);
        assert_eq!(warns(&found), is_open);
        // The lease is the one set in the file.
        assert!(
            found
                .iter()
                .any(|(.., finding)| finding["found"].as_str().is_some_and(|text| text.contains("500ms")))
        );
    }
    let text = world.dlock(["doctor", "--password-file", "password"]).any_stdout().run().stdout;
    assert!(!text.contains("hush"), "{text}");
    // A server may listen at the default address of this machine, or not.
    let output = world.dlock(["doctor", "--json"]).env_remove("DLOCK_STORE").any_stdout().any_stderr();
    assert_eq!(verdict(&findings(output), "store"), "warn");
}

/// Files with secrets, and certificates that are trusted. A configuration file that others may
/// change is refused before.
#[test]
fn every_file_that_settings_name_is_checked() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    let write = |name: &str, text: &str, mode| {
        world.write(name, text);
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(mode)).expect("permissions");
        world.path(name).display().to_string()
    };
    let client = Certificate::self_signed(&["client"], IsCa::ExplicitNoCa);
    let about = |dlock: Dlock<'_>, file: &str| {
        let found = findings(dlock)
            .into_iter()
            .filter(|(check, ..)| ["secrets", "settings"].contains(&check.as_str()))
            .find(|(.., finding)| finding["found"].as_str().is_some_and(|text| text.contains(file)));
        found.map(|(check, verdict, finding)| (check, verdict, finding["advice"].as_str().map(str::to_owned)))
    };
    let expected = |check: &str, bad: bool, advice: &str| {
        bad.then(|| (check.to_owned(), "warn".to_owned(), Some(advice.to_owned())))
    };
    for (mode, bad) in [(0o644, true), (0o600, false)] {
        let sentinel = write("sentinel-password", "s\n", mode);
        let store = format!("redis+sentinel://127.0.0.1:1/m?sentinel-password-file={sentinel}");
        let dlock = world.dlock(["doctor", "--json", "--store", &store]);
        assert_eq!(about(dlock, &sentinel), expected("secrets", bad, &format!("chmod 600 {sentinel}")));
        let cert = write("cert.pem", &client.pem, 0o644);
        let key = write("key.pem", &client.key, mode);
        let store = format!("rediss://127.0.0.1:1?cert={cert}&key={key}");
        let dlock = world.dlock(["doctor", "--json", "--store", &store]);
        assert_eq!(about(dlock, &key), expected("secrets", bad, &format!("chmod 600 {key}")));
    }
    for (mode, bad) in [(0o666, true), (0o644, false)] {
        let ca = write("ca.pem", &client.pem, mode);
        let store = format!("rediss://127.0.0.1:1?ca={ca}");
        let dlock = world.dlock(["doctor", "--json", "--store", &store]);
        assert_eq!(about(dlock, &ca), expected("settings", bad, &format!("chmod 644 {ca}")));
    }
}

/// A job inherits the environment, with its secrets.
#[test]
fn a_password_in_the_environment_gets_a_warning() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    let warned = |dlock: Dlock<'_>| {
        let found = findings(dlock);
        let of_job = found.iter().filter(|(.., finding)| {
            finding["advice"].as_str().is_some_and(|advice| advice.contains("DLOCK_PASSWORD_FILE"))
        });
        of_job.map(|(check, verdict, _)| (check.clone(), verdict.clone())).collect::<Vec<_>>()
    };
    let expected = [("secrets".to_owned(), "warn".to_owned())];
    assert_eq!(warned(world.dlock(["doctor", "--json"]).env("DLOCK_PASSWORD", "hush")), expected);
    let url = format!("redis://:hush@127.0.0.1:{}", world.redis().port());
    assert_eq!(warned(world.dlock(["doctor", "--json"]).env("DLOCK_STORE", &url)), expected);
    world.write("password", "hush\n");
    assert_eq!(warned(world.dlock(["doctor", "--json"]).env("DLOCK_PASSWORD_FILE", "password")), []);
}

/// Also for a database with sslmode=disable. Connections on this machine, and encrypted ones, get
/// no warning.
#[test]
fn an_unencrypted_password_to_another_machine_gets_a_warning() {
    let world = World::without_redis();
    let warned = |store: &str| {
        let args =
            ["doctor", "--json", "--connect-timeout", "50ms", "--op-timeout", "50ms", "--store", store];
        let found = findings(world.dlock(args).env_remove("DLOCK_STORE"));
        let found = found.into_iter().find(|(check, ..)| check == "encryption");
        found.map(|(_, verdict, finding)| {
            (verdict, finding["found"].to_string(), finding["advice"].to_string())
        })
    };
    // 203.0.113.9 is reserved for documentation, so nothing answers there.
    for (store, hosts, advice) in [
        ("redis://:hush@203.0.113.9", "203.0.113.9:6379", "rediss"),
        ("redis+cluster://:hush@127.0.0.1:1,203.0.113.9:2", "203.0.113.9:2", "rediss"),
        (
            "redis+quorum://:hush@203.0.113.9:1,203.0.113.9:2,[::1]:1",
            "203.0.113.9:1, 203.0.113.9:2",
            "rediss",
        ),
        #[cfg(feature = "etcd")]
        ("etcd://u:hush@203.0.113.9", "203.0.113.9:2379", "etcds"),
        #[cfg(feature = "zookeeper")]
        ("zookeeper://u:hush@203.0.113.9", "203.0.113.9:2181", "zookeepers"),
        #[cfg(feature = "postgres")]
        ("postgres://u:hush@203.0.113.9/d?sslmode=disable", "203.0.113.9:5432", "sslmode=disable"),
        #[cfg(feature = "mysql")]
        ("mysql://u@203.0.113.9/d?sslmode=disable", "203.0.113.9:3306", "sslmode=disable"),
        #[cfg(feature = "mysql")]
        ("mysql://u:hush@127.0.0.1:1/d?sslmode=disable", "127.0.0.1:1", "sslmode=disable"),
    ] {
        let (verdict, found, advised) = warned(store).unwrap_or_else(|| panic!("nothing is said of {store}"));
        assert_eq!(verdict, "warn", "{store}");
        assert!(
            found.contains(&format!("to {hosts} unencrypted")) && !found.contains("hush"),
            "{store}: {found}"
        );
        assert!(advised.contains(advice), "{store}: {advised}");
    }
    for store in [
        "redis://203.0.113.9",
        "redis://:hush@127.0.0.1:1",
        "redis://:hush@localhost:1",
        "redis+unix://:hush@/no/such/socket",
        "rediss://:hush@203.0.113.9",
        #[cfg(feature = "etcd")]
        "etcds://u:hush@203.0.113.9",
        #[cfg(feature = "zookeeper")]
        "zookeeper://u:hush@[::1]:1",
        #[cfg(feature = "postgres")]
        "postgres://u:hush@203.0.113.9/d",
        #[cfg(feature = "mysql")]
        "mysql://u:hush@localhost:1/d",
        #[cfg(feature = "mysql")]
        "mysql://u@localhost:1/d?sslmode=disable",
    ] {
        assert_eq!(warned(store), None, "{store}");
    }
}
