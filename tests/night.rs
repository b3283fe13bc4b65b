//! The fault-injection run (a night): everything goes wrong at once, and the promises must hold:
//! `./test --night [MINUTES] [SEED]`.

use crate::support::night::{Arrangement, Outages, Plan, Profile, Report, Row, Tool, round, round_of_peers};
use crate::support::night::{foreign, history};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Length of the faults of a round, in seconds.
const SPAN: u64 = 35;

/// A number that `./test --night` sets: the minutes, or the seed.
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
#[ignore = "./test --night: it wants the machine for itself"]
fn nothing_that_is_promised_breaks() {
    let (minutes, seed) = (asked("DLOCK_NIGHT").unwrap_or(2), seed());
    let (length, began) = (Duration::from_secs(minutes * 60), Instant::now());
    let mut report = Report::default();
    for number in 0.. {
        // A round and the checks after it.
        if number > 0 && began.elapsed() + Duration::from_secs(SPAN + 10) > length {
            break;
        }
        let (arrangement, profile) = plan(number);
        let (span, outages) = (Duration::from_secs(SPAN), Outages::Any);
        round(Plan { arrangement, profile, outages, seed: seed + number, workers: 48, span }, &mut report);
    }
    is_clean(&report, began, seed);
    assert_large(&report, minutes);
}

/// The least that a night on two cores must reach over all arrangements: 1,000 faults and 20,000
/// grants in 30 minutes, and more in longer nights. In a shorter night the start and the end of
/// each round weigh more, and so does the seed.
fn assert_large(report: &Report, minutes: u64) {
    let (faults, grants) = (1000 * minutes / 30, 20_000 * minutes / 30);
    if minutes < 30 || std::env::var_os("DLOCK_NIGHT_ONLY").is_some() {
        println!("not asked of so short a night, or of some stores: {faults} faults and {grants} grants");
        return;
    }
    let made = u64::try_from(report.counts.values().sum::<usize>()).expect("a number");
    let granted = u64::try_from(report.grants).expect("a number");
    assert!(
        made >= faults && granted >= grants,
        "{made} faults and {granted} grants; a night of {minutes} minutes shows little with less than {faults} and {grants}: \
         has the machine other things to do?"
    );
    assert!(report.pairs >= 100, "who was served before whom was judged of {} pairs only", report.pairs);
}

/// A short version: no outage lasts as long as a lease, so that it can run on any machine.
#[test]
#[ignore = "./test makes it last, when the machine has nothing else to do"]
fn a_short_night() {
    let (seed, began) = (1, Instant::now());
    let mut report = Report::default();
    let arrangements = [
        (Arrangement::Single, Profile::Safe),
        (Arrangement::File, Profile::Safe),
        (Arrangement::Quorum(3), Profile::Safe),
        (Arrangement::Sentinel, Profile::Forgetful),
        (Arrangement::Cluster, Profile::Safe),
    ];
    for (seed, (arrangement, profile)) in (seed..).zip(arrangements) {
        let (span, outages) = (Duration::from_secs(8), Outages::Short);
        round(Plan { arrangement, profile, outages, seed, workers: 10, span }, &mut report);
    }
    is_clean(&report, began, seed);
}

/// The histories in docs/nights, or in the directory that `./test --judge` names.
#[test]
fn a_foreign_judge_reads_the_published_nights() {
    let directory = std::env::var("DLOCK_NIGHT_JUDGE").unwrap_or_else(|_| "docs/nights".to_owned());
    let judged = judge_again(&directory);
    let grants: usize = judged.iter().map(|(_, verdict)| verdict.grants).sum();
    let faults: Vec<String> = judged
        .iter()
        .flat_map(|(file, verdict)| verdict.faults.iter().map(move |fault| format!("{file}: {fault}")))
        .collect();
    assert!(grants > 0, "there is no history in {directory}");
    assert!(faults.is_empty(), "{} pieces are not linearizable, the first is\n{}", faults.len(), faults[0]);
    println!("{grants} grants are linearizable");
}

/// Nights of a dlock into which a fault was planted: deadlines 3 s late, and fences that sometimes fall.
#[test]
fn the_foreign_judge_rejects_nights_of_a_faulty_dlock() {
    let judged = judge_again("docs/nights/planted");
    let wrong: Vec<(&str, usize)> =
        judged.iter().map(|(file, verdict)| (file.as_str(), verdict.faults.len())).collect();
    let expected = [
        ("20261126-file-safe.jsonl.gz", 70),
        ("20261126-quorum3-safe.jsonl.gz", 3),
        ("20261127-quorum5-safe.jsonl.gz", 2),
    ];
    assert_eq!(wrong, expected);
}

/// What the foreign judge says of each history in a directory.
fn judge_again(directory: &str) -> Vec<(String, foreign::Verdict)> {
    let mut files: Vec<String> = fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{directory}: {error}"))
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| [".jsonl", ".jsonl.gz"].iter().any(|end| name.ends_with(end)))
        .collect();
    files.sort();
    let judge = |file: String| {
        // With -f and -c it hands on what is not compressed.
        let unpacked = Command::new("gzip").arg("-dcf").arg(Path::new(directory).join(&file)).output();
        let text = String::from_utf8(unpacked.expect("gzip is installed").stdout).expect("text");
        let verdict = foreign::judge(&history::parse(&text));
        println!("{file}: {verdict}");
        (file, verdict)
    };
    files.into_iter().map(judge).collect()
}

#[track_caller]
fn is_clean(report: &Report, began: Instant, seed: u64) {
    println!("{}", report.summary(began.elapsed()));
    let first = report.faults.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        report.faults.is_empty(),
        "seed {seed}: {} things are wrong, the first are\n{first}",
        report.faults.len()
    );
}

/// The requested seed, or a new one; it is printed.
fn seed() -> u64 {
    let new = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() % 1_000_000);
    let seed = asked("DLOCK_NIGHT_SEED").unwrap_or_else(new);
    println!("seed {seed}");
    seed
}

/// dlock and other tools, each on a store that both support, under the same faults as far as they
/// apply.
#[test]
#[ignore = "./test --stores --night MINUTES SEED peers: it wants the machine for itself, and the others"]
fn others_by_the_same_night() {
    let pairs = Tool::pairs();
    let (minutes, seed) = (asked("DLOCK_NIGHT").unwrap_or(8), seed());
    let count = u64::try_from(pairs.len()).expect("a few");
    // A round takes longer than its faults.
    let (mut rounds, mut span) = (1, minutes * 60 / count);
    while span > 60 {
        (rounds, span) = (rounds + 1, minutes * 60 / count / (rounds + 1));
    }
    println!("{}", Row::HEAD);
    for (store, tool) in pairs {
        let mut row = Row::default();
        for round in 0..rounds {
            let (seed, span) = (seed + round, Duration::from_secs(span));
            let (profile, outages) = (Profile::Safe, Outages::Any);
            let plan = Plan { arrangement: store, profile, outages, seed, workers: 24, span };
            round_of_peers(plan, tool, &mut row);
        }
        println!("| {tool:?}, {store:?} | {row} |");
        let is_clean = row.overlaps.is_empty() && row.lost == 0 && row.orphans == 0 && row.swallowed == 0;
        assert!(tool != Tool::Dlock || is_clean, "seed {seed}: {store:?} {row:?}");
    }
}

/// The arrangement and the profile of a round: every arrangement in turn (or those whose name was
/// requested), in the end with all profiles (or with the requested one: `quorum calm`).
fn plan(number: u64) -> (Arrangement, Profile) {
    let only = std::env::var("DLOCK_NIGHT_ONLY").unwrap_or_default().to_lowercase();
    let (store, profile) = only.split_once(' ').unwrap_or((&only, ""));
    let mut all = Arrangement::all();
    all.retain(|one| format!("{one:?}").to_lowercase().contains(store));
    let count = u64::try_from(all.len()).expect("a few");
    let arrangement = all[usize::try_from(number % count).expect("a few")];
    use Profile::{Calm, Cut, Forgetful, Jumpy, Safe, SlowLine, Unguarded};
    let mut profiles = match arrangement {
        Arrangement::Single => {
            vec![Safe, Forgetful, Cut, SlowLine, Calm, Jumpy, Unguarded]
        }
        Arrangement::Quorum(_) => {
            vec![Safe, Calm, Cut, Unguarded, Forgetful]
        }
        Arrangement::Sentinel | Arrangement::Failover => vec![Forgetful, Calm],
        Arrangement::Cluster => vec![Safe, Unguarded, Calm, Cut, Forgetful],
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Arrangement::Database(_) => vec![Safe, Cut, SlowLine, Unguarded, Calm, Jumpy],
        Arrangement::File => vec![Safe, Unguarded, Calm],
        // etcd and ZooKeeper forget nothing.
        #[cfg(any(feature = "etcd", feature = "zookeeper"))]
        _ => vec![Safe, Cut, SlowLine, Unguarded, Calm],
    };
    profiles.retain(|one| format!("{one:?}").to_lowercase().contains(profile));
    assert!(!profiles.is_empty(), "{arrangement:?} has no such profile: {profile}");
    let turn = usize::try_from(number / count).expect("a few");
    (arrangement, profiles[turn % profiles.len()])
}
