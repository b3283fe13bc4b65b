//! Which facts lead to which findings.

use super::*;
use crate::store::probe::*;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn criteria() -> Criteria {
    Criteria {
        store: "redis://h:6379".into(),
        named: Some("set by --store".into()),
        ttl: Duration::from_secs(30),
        op_timeout: Duration::from_secs(1),
        max_lease: Duration::from_secs(300),
        files: vec![],
        exposed: vec![],
        password_from: None,
        clear: None,
    }
}

fn info() -> Info {
    Info {
        version: "7.0.15".into(),
        role: Role::Master,
        uptime: Duration::from_secs(86_400),
        eviction: "noeviction".into(),
        memory: 0,
        persistence: Persistence::Log,
        replicas: 0,
        fenced: false,
    }
}

fn facts() -> Facts {
    Facts {
        round_trip: ms(1),
        clock: Some(Offset::Ahead(ms(3))),
        info: Some(info()),
        rights: Rights::default(),
    }
}

fn survey(facts: Facts) -> Survey {
    Survey::Servers { nodes: vec![Node { name: "h:6379".into(), facts: Ok(facts) }], failover: None }
}

/// The findings that are not ok, as check and verdict. Checks that exactly these have advice.
fn complaints(survey: &Survey, criteria: &Criteria) -> Vec<(&'static str, Verdict)> {
    let findings = judge(survey, criteria);
    for finding in &findings {
        println!("{finding:?}");
        assert_eq!(finding.advice.is_some(), finding.verdict != Verdict::Ok, "{finding:?}");
        assert!(!finding.found.is_empty(), "{finding:?}");
    }
    let complaints = findings.iter().filter(|finding| finding.verdict != Verdict::Ok);
    complaints.map(|finding| (finding.check, finding.verdict)).collect()
}

#[test]
fn good_server_has_no_complaint() {
    assert_eq!(complaints(&survey(facts()), &criteria()), []);
}

#[test]
fn facts_of_info_are_judged() {
    let cases: [(Info, &[(&str, Verdict)]); 13] = [
        (Info { version: "6.2.0".into(), ..info() }, &[("version", Verdict::Warn)]),
        (Info { version: String::new(), ..info() }, &[("version", Verdict::Warn)]),
        (Info { version: "10.1".into(), ..info() }, &[]),
        (Info { role: Role::Replica, ..info() }, &[("role", Verdict::Bad)]),
        (Info { eviction: "allkeys-lru".into(), memory: 1, ..info() }, &[("eviction", Verdict::Bad)]),
        (Info { eviction: "volatile-ttl".into(), memory: 1, ..info() }, &[("eviction", Verdict::Bad)]),
        (Info { eviction: "allkeys-lru".into(), ..info() }, &[("eviction", Verdict::Warn)]),
        (Info { memory: 1, ..info() }, &[]),
        (Info { persistence: Persistence::Snapshots, ..info() }, &[("persistence", Verdict::Warn)]),
        (
            Info { persistence: Persistence::None, uptime: Duration::from_secs(29), ..info() },
            &[("persistence", Verdict::Warn), ("uptime", Verdict::Warn)],
        ),
        (Info { uptime: Duration::from_secs(29), ..info() }, &[]),
        (Info { replicas: 1, ..info() }, &[("replicas", Verdict::Warn)]),
        (Info { replicas: 1, fenced: true, ..info() }, &[]),
    ];
    for (info, expected) in cases {
        let found = complaints(&survey(Facts { info: Some(info), ..facts() }), &criteria());
        assert_eq!(found, expected);
    }
    let none = complaints(&survey(Facts { info: None, ..facts() }), &criteria());
    assert_eq!(none, [("info", Verdict::Warn)]);
}

#[test]
fn round_trip_is_compared_with_renewal_attempt() {
    // A sixteenth of 30 s is more than the op-timeout of 1 s; a sixteenth of 500 ms is 31 ms.
    let short = Criteria { ttl: ms(500), ..criteria() };
    for (criteria, slowest, expected) in [
        (criteria(), 250, &[][..]),
        (criteria(), 251, &[("round trip", Verdict::Warn)]),
        (criteria(), 1000, &[("round trip", Verdict::Bad)]),
        (short.clone(), 7, &[]),
        (short.clone(), 8, &[("round trip", Verdict::Warn)]),
        (short, 32, &[("round trip", Verdict::Bad)]),
    ] {
        let round_trip = ms(slowest);
        assert_eq!(complaints(&survey(Facts { round_trip, ..facts() }), &criteria), expected, "{slowest}");
    }
}

#[test]
fn clocks_and_rights() {
    for (clock, expected) in [
        (Some(Offset::Behind(ms(999))), &[][..]),
        (Some(Offset::Behind(ms(1000))), &[("clock", Verdict::Warn)]),
        (Some(Offset::Ahead(ms(3_600_000))), &[("clock", Verdict::Warn)]),
        (None, &[]),
    ] {
        assert_eq!(complaints(&survey(Facts { clock, ..facts() }), &criteria()), expected);
    }
    let rights = Rights {
        commands: vec!["ZADD".into(), "SCAN".into()],
        keys: Some("~dlock:*".into()),
        beyond: Some("~dlock:*".into()),
        refused: Some("OOM".into()),
    };
    let findings = judge(&survey(Facts { rights, ..facts() }), &criteria());
    let bad: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).collect();
    assert_eq!(bad.len(), 3, "{bad:?}");
    assert!(bad[0].advice.as_deref().is_some_and(|text| text.contains("~dlock:*")), "{bad:?}");
    assert!(bad[1].advice.as_deref().is_some_and(|text| text.contains("+zadd +scan")), "{bad:?}");
}

#[test]
fn settings_and_failover() {
    let file = |sensitivity, mode| Criteria {
        files: vec![SettingsFile { path: "/etc/dlock.toml".into(), sensitivity, mode }],
        ..criteria()
    };
    let secret = |mode| file(Sensitivity::Secret, mode);
    let trusted = |mode| file(Sensitivity::Trusted, mode);
    for (criteria, expected) in [
        (Criteria { named: None, ..criteria() }, &[("store", Verdict::Warn)][..]),
        (secret(0o100_644), &[("secrets", Verdict::Warn)]),
        (secret(0o100_660), &[("secrets", Verdict::Warn)]),
        (secret(0o100_640), &[]),
        (secret(0o100_600), &[]),
        (trusted(0o100_666), &[("settings", Verdict::Warn)]),
        (trusted(0o100_664), &[("settings", Verdict::Warn)]),
        (trusted(0o100_644), &[]),
        (Criteria { exposed: vec!["DLOCK_PASSWORD"], ..criteria() }, &[("secrets", Verdict::Warn)]),
    ] {
        assert_eq!(complaints(&survey(facts()), &criteria), expected);
    }
    for (seconds, expected) in [(13, &[][..]), (14, &[("failover", Verdict::Warn)])] {
        let failover = Some(Duration::from_secs(seconds));
        let survey = Survey::Servers { nodes: vec![], failover };
        assert_eq!(complaints(&survey, &criteria()), expected, "{seconds}");
    }
    let gone = Node { name: "h:1".into(), facts: Err(Error::Unreachable("cannot reach it".into())) };
    let survey = Survey::Servers { nodes: vec![gone], failover: None };
    assert_eq!(complaints(&survey, &criteria()), [("reachable", Verdict::Bad)]);
}

#[test]
fn directories() {
    let disk = Disk { file_system: "ext4".into(), mode: 0o2770, locks: Ok(()), fifos: Ok(()), clock: Ok(()) };
    let broken = || Err("no".to_owned());
    let cases: [(Disk, &[(&str, Verdict)]); 5] = [
        (disk.clone(), &[]),
        (Disk { mode: 0o700, ..disk.clone() }, &[]),
        (Disk { locks: broken(), ..disk.clone() }, &[("file locks", Verdict::Bad)]),
        (Disk { fifos: broken(), ..disk.clone() }, &[("FIFOs", Verdict::Bad)]),
        (Disk { clock: broken(), ..disk }, &[("clock", Verdict::Warn)]),
    ];
    let survey = |found| Survey::Directory(Directory { path: "/locks".into(), found });
    for (disk, expected) in cases {
        assert_eq!(complaints(&survey(Some(Ok(disk))), &criteria()), expected);
    }
    assert_eq!(complaints(&survey(None), &criteria()), [("directory", Verdict::Warn)]);
    let unfit = Some(Err(Error::Unfit("NFS".into())));
    assert_eq!(complaints(&survey(unfit), &criteria()), [("directory", Verdict::Bad)]);
}

#[test]
fn etcd_that_ends_live_leases_gets_a_warning() {
    let judged = |version: &str, members| {
        let database = Database {
            round_trip: ms(1),
            clock: None,
            version: version.into(),
            members,
            role: Role::Master,
            standbys: None,
            forgets_by: vec![],
            tried: Ok(Tried::Done),
            wake_up: WakeUp::Works,
            others: None,
            almighty: None,
        };
        complaints(&Survey::Database(Ok(database)), &criteria())
    };
    let warned = [("version", Verdict::Warn)];
    for version in ["etcd 3.4.23", "etcd 3.4.30", "etcd 3.5.0", "etcd 3.5.12"] {
        assert_eq!(judged(version, Some(3)), warned, "{version}");
        assert_eq!(judged(version, None), warned, "{version}");
        assert_eq!(judged(version, Some(1)), [], "nobody else becomes the leader");
    }
    for version in [
        "etcd 3.4.31",
        "etcd 3.5.13",
        "etcd 3.6.0",
        "PostgreSQL 15.3",
        "etcd (only its root user can see the version)",
    ] {
        assert_eq!(judged(version, Some(3)), [], "{version}");
    }
}
