//! Which module of src may use which, and other rules about the sources. Checked here, because the
//! compiler allows more.

use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The parts of the crate that a part may use besides itself. A part that is not listed may use
/// all.
const MAY_KNOW: [(&str, &[&str]); 13] = [
    ("exit", &[]),
    ("shell", &[]),
    ("clock", &[]),
    ("sys", &[]),
    ("lock", &[]),
    ("rules", &["clock", "exit", "lock"]),
    ("cli", &["lock", "exit", "shell"]),
    ("error", &["exit", "store"]),
    ("store", &["clock", "exit", "rules", "lock", "sys"]),
    ("lease", &["clock", "rules", "lock", "store"]),
    ("supervise", &["clock", "exit", "sys"]),
    ("config", &["cli", "error", "exit", "lock", "sys"]),
    ("output", &["cli", "clock", "config", "error", "exit", "rules", "lock", "shell", "store", "sys"]),
];

#[test]
fn no_module_uses_more_than_it_may() {
    let mut trespasses = Vec::new();
    let mut used = BTreeSet::new();
    for (path, text) in sources() {
        let part = part(&path);
        let Some((_, known)) = MAY_KNOW.iter().find(|(name, _)| *name == part) else { continue };
        for named in named_parts(&text) {
            if named != part && !known.contains(&named.as_str()) {
                trespasses.push(format!("{} names crate::{named}", path.display()));
            }
            used.insert((part.clone(), named));
        }
    }
    assert_eq!(trespasses, [""; 0]);
    for (part, known) in MAY_KNOW {
        let idle = known.iter().find(|named| !used.contains(&(part.to_owned(), (**named).to_owned())));
        assert_eq!(idle, None, "{part} may know it and does not");
    }
}

/// Only commands join stores and jobs.
#[test]
fn only_commands_join_locks_and_children() {
    for (path, text) in sources() {
        let named = named_parts(&text);
        if named.contains("supervise") && named.contains("store") {
            assert_eq!(part(&path), "commands", "{}", path.display());
        }
    }
}

/// Only the processes that close what they have inherited call an unsafe function from outside.
#[test]
fn unsafe_is_in_one_place() {
    let callers = ["supervise/bond.rs", "supervise/guard/start.rs", "supervise/separate.rs"];
    for (path, text) in sources().into_iter().filter(|(path, _)| part(path) != "sys") {
        let uses = code_lines(&text).filter(|line| words(line).any(|word| word == "unsafe")).count();
        let closes = code_lines(&text).filter(|line| line.contains("sys::close_all_but(")).count();
        let may = usize::from(callers.iter().any(|caller| path == Path::new(caller)));
        assert_eq!((uses, closes), (may, may), "{}", path.display());
    }
}

#[test]
fn lints_are_not_silenced() {
    for (path, text) in sources().into_iter().chain(tests()) {
        for line in code_lines(&text) {
            let silenced = line.trim_start().strip_prefix('#').is_some_and(|rest| {
                let rest = rest.trim_start_matches('!').trim_start_matches('[');
                rest.starts_with("allow(") || rest.starts_with("cfg_attr") && rest.contains("allow(")
            });
            assert!(!silenced, "{}: {line}", path.display());
        }
    }
}

/// The kernel writes the content of these files. Others (environ, cmdline, maps) show the memory of
/// a process: its owner decides how much there is to read, and whether the read returns.
#[test]
fn stopping_a_job_reads_nothing_that_a_process_controls() {
    let of_the_kernel = ["stat", "comm", "task", "cgroup"];
    let file = Regex::new(r"/proc/\{\w+\}/(\w+)").expect("a pattern");
    let read: BTreeSet<String> = sources()
        .into_iter()
        .filter(|(path, _)| part(path) == "supervise")
        .flat_map(|(_, text)| file.captures_iter(&text).map(|found| found[1].to_owned()).collect::<Vec<_>>())
        .collect();
    assert_eq!(read, of_the_kernel.map(str::to_owned).into());
}

/// The lock rules are pure: the caller passes the time.
#[test]
fn the_rules_read_no_clock_and_do_no_io() {
    let outside = [
        "std::time::Instant",
        "SystemTime",
        "Instant::now",
        "Moment::now",
        ".left()",
        ".passed()",
        "std::fs",
        "std::io",
        "std::net",
    ];
    let outside =
        [&outside[..], &["std::env", "std::process", "std::thread", "rustix", "libc", "redis"]].concat();
    // Tests of the rules may use threads and settings.
    let is_tested = |path: &Path| path.iter().any(|part| part == "tests");
    let rules = sources()
        .into_iter()
        .filter(|(path, _)| part(path) == "rules" && !is_tested(path))
        .collect::<Vec<_>>();
    assert!(!rules.is_empty());
    for (path, text) in rules {
        for line in code_lines(&text) {
            let found = outside.iter().find(|name| line.contains(**name));
            assert_eq!(found, None, "{}: {line}", path.display());
        }
    }
}

/// No chain of uses leads from a file back to itself. A file and the files below it count as one.
#[test]
fn no_circle_between_files() {
    let files: BTreeMap<Vec<String>, String> =
        sources().into_iter().map(|(path, text)| (module(&path), code_lines(&text).collect())).collect();
    let mut knows: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for (file, text) in &files {
        let known = paths(text).into_iter().filter_map(|path| resolved(&path, file, &files));
        knows.insert(
            file,
            known.filter(|known| !known.starts_with(file) && !file.starts_with(known)).collect(),
        );
    }
    // A file that uses no remaining file, or is used by none, is in no circle.
    loop {
        let left: BTreeSet<Vec<String>> = knows.keys().map(|file| (*file).clone()).collect();
        let known: BTreeSet<Vec<String>> = knows.values().flatten().cloned().collect();
        knows.retain(|file, knows| !knows.is_disjoint(&left) && known.contains(*file));
        if knows.len() == left.len() {
            break;
        }
    }
    assert_eq!(knows.keys().map(|file| file.join("::")).collect::<Vec<_>>(), [""; 0]);
}

/// `store/redis.rs` as `store`, `redis`.
fn module(path: &Path) -> Vec<String> {
    path.with_extension("").iter().map(|part| part.to_str().expect("a name").to_owned()).collect()
}

/// The paths in a text; `use` groups are expanded.
fn paths(text: &str) -> Vec<String> {
    let inline = Regex::new(r"\b(?:crate|super)(?:::\w+)+").expect("a pattern");
    let groups = Regex::new(r"\buse ([^;]+);").expect("a pattern");
    let mut paths: Vec<String> = inline.find_iter(text).map(|path| path.as_str().to_owned()).collect();
    groups.captures_iter(text).for_each(|group| paths.extend(taken_apart(&group[1].replace(' ', ""))));
    paths
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn taken_apart(tree: &str) -> Vec<String> {
    let Some((before, group)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) else {
        return vec![tree.to_owned()];
    };
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in group.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.iter().flat_map(|part| taken_apart(part)).map(|part| format!("{before}{part}")).collect()
}

/// The file that a path in `file` leads to, if it is one of src.
fn resolved(path: &str, file: &[String], files: &BTreeMap<Vec<String>, String>) -> Option<Vec<String>> {
    let mut at = file.to_vec();
    let mut found = None;
    for part in path.split("::") {
        match part {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            part => at.push(part.to_owned()),
        }
        found = files.contains_key(&at).then(|| at.clone()).or(found);
    }
    found
}

/// Every file begins with a `//!` line that says what it is for.
#[test]
fn every_file_says_what_it_is_for() {
    for (path, text) in sources().into_iter().chain(tests()) {
        assert!(text.starts_with("//! "), "{}", path.display());
    }
}

#[test]
fn no_file_collects_unrelated_code() {
    for (path, _) in sources().into_iter().chain(tests()) {
        let attic = ["utils", "util", "common", "helpers", "types", "imp", "misc"];
        let inside = path.with_extension("");
        let found = inside.iter().find(|name| attic.iter().any(|attic| name.to_str() == Some(attic)));
        assert_eq!(found, None, "{}", path.display());
    }
}

/// Words of a private dialect that plain ones have replaced, looked for in the comments of src and
/// tests.
#[test]
fn words_that_must_not_come_back() {
    let dialect = [
        "the law",
        "twin",
        "tidy",
        "sent home",
        "goes home",
        "whoever",
        "somebody who",
        "who asks",
        "befalls",
        "bears out",
        "makes itself heard",
    ];
    let scripts = files_below("src", "lua");
    for (path, text) in sources().into_iter().chain(tests()).chain(scripts) {
        let is_comment = |line: &&str| ["//", "--"].iter().any(|mark| line.trim_start().starts_with(mark));
        for line in text.lines().filter(is_comment) {
            let plain = format!(" {} ", words(line).collect::<Vec<_>>().join(" ")).to_lowercase();
            let found = dialect.iter().find(|word| plain.contains(&format!(" {word} ")));
            assert_eq!(found, None, "{}: {line}", path.display());
        }
    }
}

/// Every file of the suite is declared in the file of its folder.
#[test]
fn every_test_file_runs() {
    let files = tests();
    // Two are targets of Cargo.toml.
    let targets = ["main.rs", "default_build.rs"].map(Path::new);
    for (path, _) in files.iter().filter(|(path, _)| !targets.contains(&path.as_path())) {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let parent = folder.map_or("main.rs".into(), |folder| folder.with_extension("rs"));
        let (_, declared) = files.iter().find(|(path, _)| *path == parent).expect("the folder's file");
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        assert!(declared.contains(&format!("mod {name};")), "{} is not run", path.display());
    }
}

/// The first component below src.
fn part(path: &Path) -> String {
    let first = path.iter().next().expect("a path").to_str().expect("a name");
    first.strip_suffix(".rs").unwrap_or(first).to_owned()
}

/// The parts of the crate that a text names, by `crate::part` or within `crate::{…}`.
fn named_parts(text: &str) -> BTreeSet<String> {
    let code = code_lines(text).collect::<Vec<_>>().join("\n");
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => named.extend(words(rest).next().map(str::to_owned)),
            Some(group) => named.extend(heads_of_group(group)),
        }
    }
    named
}

/// The first names in `a::b, c::{d, e}, f}`.
fn heads_of_group(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let (mut depth, mut head) = (0, String::new());
    let mut in_head = true;
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(std::mem::take(&mut head));
                in_head = true;
            }
            ':' => in_head = in_head && depth > 0,
            c if depth == 0 && in_head && (c.is_alphanumeric() || c == '_') => head.push(c),
            _ => {}
        }
    }
    heads.push(head);
    heads.retain(|head| !head.is_empty());
    heads
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The lines outside comments, up to the unit tests, which may look at everything.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    code.filter(|line| !line.trim_start().starts_with("//"))
}

pub fn sources() -> Vec<(PathBuf, String)> {
    read_below("src")
}

fn tests() -> Vec<(PathBuf, String)> {
    read_below("tests")
}

/// Every Rust file below a directory of the package, by its path there.
pub fn read_below(directory: &str) -> Vec<(PathBuf, String)> {
    files_below(directory, "rs")
}

/// Every file below a directory of the package whose name ends so, by its path there.
fn files_below(directory: &str, end: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let (mut found, mut pending) = (Vec::new(), vec![root.clone()]);
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == end) {
                let below = path.strip_prefix(&root).expect("below the root").to_owned();
                found.push((below, fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    found.sort();
    found
}
