#!/usr/bin/env python3
"""Tries the tests: cargo-mutants changes one thing after another in the files below, and each time a quick test (units, every
short history of the lock rules, the simulated fleet) must fail. `./test --mutants [FILE...]` runs it; without FILE, on the
files that have changed since they were last tried.

docs/nights/mutants.txt keeps what came of it: of each file the hash of what was tried, how many changes were found out, and
those that were not (survivors). A survivor that no user can notice gets its reason there, after a tab; later runs keep it."""
import json, os, re, shutil, subprocess, sys, tempfile
from collections import Counter
from pathlib import Path

LIST = Path("docs/nights/mutants.txt")
# The lock rules need little else of dlock. With that alone as a crate, a change is built in a second.
RULES = ["clock", "exit", "lock", "rules"]
FILES = ["src/rules.rs", *sorted(str(path) for path in Path("src/rules").rglob("*.rs") if "tests" not in str(path))]
# The lease, and what ends the job: for these it is built as a whole.
FILES += ["src/lease/retry.rs", "src/lease/keeper.rs", "src/lease/keeper/race.rs", "src/supervise/limits.rs",
          "src/supervise/stop.rs", "src/supervise/guard/due.rs"]
# Left to a later round, because they take most of the time.
SLOW = ["explored", "weeks", "sim::"]


def hash_of(file):
    return subprocess.run(["git", "hash-object", file], check=True, capture_output=True, text=True).stdout.strip()[:12]


def read():
    """Of each file its hash, counts and survivors; and the reason for each survivor."""
    known, reasons, file = {}, {}, None
    for line in LIST.read_text().splitlines() if LIST.exists() else []:
        if line.startswith("  "):
            survivor, _, reason = line[2:].partition("\t")
            known[file][1].append(survivor)
            reasons[file, survivor] = reason
        elif line and not line.startswith("#"):
            file, rest = line.split(" ", 1)
            known[file] = (rest, [])
    return known, reasons


def write(known, reasons):
    lines = ["# Written by ./test --mutants: changes that no quick test found out. A survivor's reason comes after a tab."]
    for file, (rest, survivors) in sorted(known.items()):
        lines.append(f"{file} {rest}")
        lines += [f"  {survivor}\t{reasons.get((file, survivor), '')}".rstrip() for survivor in survivors]
    LIST.write_text("\n".join(lines) + "\n")


def crate_of_rules(place):
    """Makes a package of the lock rules alone in the directory `place`."""
    Path(place, "src").mkdir()
    for module in RULES:
        shutil.copy(f"src/{module}.rs", f"{place}/src")
        if Path("src", module).is_dir():
            shutil.copytree(f"src/{module}", f"{place}/src/{module}")
    Path(place, "src/lib.rs").write_text("".join(f"pub mod {module};\n" for module in RULES))
    shutil.copy("Cargo.lock", place)
    # Without the programs, benches and tests.
    manifest = re.sub(r"(?m)^\[\[(?:bin|bench|test)\]\]\n(?:[^\[\n].*\n|\n)*", "", Path("Cargo.toml").read_text())
    Path(place, "Cargo.toml").write_text(manifest)
    return place


def rounds(file):
    """The tests that try a change, the quickest first: which package is built, and arguments for its test program."""
    quick = [word for slow in SLOW for word in ("--skip", slow)]
    if file.startswith("src/rules"):
        return [("rules", quick), ("rules", SLOW[:2]), ("whole", ["--skip", "rules::"])]
    return [("whole", quick), ("whole", SLOW)]


def try_one(file):
    """How many changes were found out, took too long or could not be built; and the survivors."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target").resolve() / "mutants"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "PROPTEST_RNG_SEED": "1"}
    counts = Counter()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as output:
        small = ["--in-place", "-d", crate_of_rules(place)]
        whole = ["--features", "mysql,postgres,etcd,zookeeper"]
        for number, (package, tests) in enumerate(rounds(file)):
            command = ["cargo", "mutants", "--no-shuffle", "--colors=never", "--minimum-test-timeout=60", "-f", file, "-o", output,
                       *(["--iterate"] if number else []), *(small if package == "rules" else whole)]
            command += ["--", "--locked", "--lib", "--", *tests]
            # 2: there are survivors; 3: some took too long.
            if subprocess.run(command, env=environment).returncode not in (0, 2, 3):
                sys.exit(f"cargo mutants failed at {file}")
            outcomes = json.loads(Path(output, "mutants.out/outcomes.json").read_text())["outcomes"]
            counts.update(one["summary"] for one in outcomes)
            missed = [one["scenario"]["Mutant"]["name"] for one in outcomes if one["summary"] == "MissedMutant"]
            if not missed:
                break
    # Without the line and column, which change with every edit above.
    survivors = sorted(name.split(": ", 1)[1] for name in missed)
    rest = f"{hash_of(file)} found {counts['CaughtMutant']}, timeout {counts['Timeout']}, unviable {counts['Unviable']}"
    return rest, survivors


def main():
    known, reasons = read()
    files = sys.argv[1:] or [file for file in FILES if known.get(file, ("", ()))[0].split(" ")[0] != hash_of(file)]
    for file in files:
        known[file] = try_one(file)
        write(known, reasons)
        print(f"{file}: {known[file][0]}, survived {len(known[file][1])}", flush=True)
    unexplained = [(file, one) for file in files for one in known[file][1] if not reasons.get((file, one))]
    for file, survivor in unexplained:
        print(f"survived without a reason: {file}: {survivor}")
    sys.exit(bool(unexplained))


main()
