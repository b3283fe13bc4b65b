#!/usr/bin/env python3
"""Checks the specification with TLC: `./test --spec` runs it. The good models must hold, the broken ones must not: each
gives a counterexample, which is told as a story. README.md beside this file explains the models.

check.py TLA2TOOLS.JAR [MODEL...]"""
import os, re, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).parent
# Model, module.
GOOD = [("lock", "dlock"), ("slow", "dlock"), ("force", "dlock"), ("lease", "dlock"), ("order", "dlock"), ("newcomer", "dlock"), ("dropped", "dlock"), ("once", "once")]
# Checked if named.
LONG = [("all", "dlock")]
# What is left out, the good model that is changed, the changed constants, what must be violated.
BROKEN = [
    ("the store remembers a grant until the lease ends", "slow", {"Dropped": '{"remembers"}'}, "Exclusion"),
    ("the store's clock does not jump", "slow", {"Dropped": '{"clock"}'}, "Exclusion"),
    ("the holder's clock does not stand still", "slow", {"Dropped": '{"ticks"}'}, "Exclusion"),
    ("dlock or its guard is alive and gets a processor", "slow", {"Dropped": '{"awake"}'}, "Exclusion"),
    ("the job stays below the guard", "slow", {"Dropped": '{"below"}'}, "Exclusion"),
    ("the kernel ends killed processes in time", "slow", {"Dropped": '{"kills"}'}, "Exclusion"),
    # Rules of dlock itself.
    ("KILL comes early enough for a slow clock", "slow", {"KILL": "2"}, "Exclusion"),
    ("a forced lock waits for its old lease", "force", {"Dropped": '{"now"}'}, "Exclusion"),
    ("the new process looks at the clock before exec", "force", {"Dropped": '{"look"}'}, "Covered"),
    ("a released token is refused", "force", {"Dropped": '{"spent"}'}, "Refused"),
    ("a renewal names its fence", "force", {"Dropped": '{"awake", "fence"}'}, "Renewed"),
    ("the first waiter is granted the lock", "order", {"Dropped": '{"order"}'}, "Order"),
    ("a success counts from the arrival", "once", {"Dropped": '{"arrival"}'}, "Kept"),
    ("a place in the queue tells when its run came", "once", {"Dropped": '{"place"}'}, "Once"),
    # What must be reachable, or a model that does nothing would pass.
    ("no lock is ever handed over", "force", {}, "NoHandOver"),
    ("only one tick succeeds", "once", {}, "NoTwo"),
    ("no tick catches up on another", "once", {}, "NoCatch"),
]
BREACHES = {
    "Exclusion": "two jobs live at once", "Covered": "a job lives without its lease", "Refused": "a released token has the lock",
    "Renewed": "the KILL of a job that has lost its lock moves on", "Order": "a waiter is overtaken",
    "Once": "one tick succeeds twice", "Kept": "a tick is lost",
}
PROPERTIES = ("OwnOnly", "StartsOnce", "Grows", "Renewed", "Order")


def configuration(model, changes, expected):
    """A model as it is, or with changes and nothing to check but what they must violate."""
    text = (HERE / f"{model}.cfg").read_text()
    for name, value in changes.items():
        text, count = re.subn(rf"^  {name} = .*$", f"  {name} = {value}", text, flags=re.M)
        assert count == 1, f"{model}.cfg has no {name}"
    if expected:
        kind = "PROPERTIES" if expected in PROPERTIES else "INVARIANTS"
        text = re.sub(r"^(INVARIANTS|PROPERTIES) .*\n", "", text, flags=re.M) + f"{kind} {expected}\n"
    return text


def tlc(jar, module, text, written=None, workers=None):
    """What TLC prints about a module: one of this directory, or one that is written for it."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "model.cfg").write_text(text)
        for path in HERE.glob("*.tla"):
            Path(place, path.name).write_text(path.read_text())
        for name, lines in (written or {}).items():
            Path(place, f"{name}.tla").write_text(lines)
        cores = str(workers or len(os.sched_getaffinity(0)))
        command = ["java", "-XX:+UseParallelGC", "-Xss16m", f"-Djava.io.tmpdir={place}", "-cp", jar, "tlc2.TLC", "-deadlock"]
        command += ["-workers", cores, "-metadir", place, "-config", "model.cfg", module]
        return subprocess.run(command, cwd=place, capture_output=True, text=True).stdout


def value(text):
    """A value as TLC prints it."""
    tokens = re.findall(r'"[^"]*"|\w+|<<|>>|\|->|:>|@@|[][(){},]', text)

    def one():
        token = tokens.pop(0)
        if token == "[":
            return pairs("|->", ",", "]")
        if token == "(":
            return pairs(":>", "@@", ")")
        if token in ("{", "<<"):
            close, items = {"{": "}", "<<": ">>"}[token], []
            while tokens[0] != close:
                items.append(one())
                if tokens[0] == ",":
                    tokens.pop(0)
            tokens.pop(0)
            return items
        return int(token) if token.isdigit() else {"TRUE": True, "FALSE": False}.get(token, token.strip('"'))

    def pairs(arrow, comma, close):
        found = {}
        while tokens[0] != close:
            key = one()
            assert tokens.pop(0) == arrow
            found[key] = one()
            if tokens[0] == comma:
                tokens.pop(0)
        tokens.pop(0)
        return found

    return one()


def trace(output):
    """The states of a counterexample."""
    states = []
    for part in re.split(r"^State \d+: .*$", output, flags=re.M)[1:]:
        lines = part.split("\n\n")[0]
        states.append({name: value(text) for name, text in re.findall(r"/\\ (\w+) = (.*?)(?=\n/\\ |\Z)", lines, flags=re.S)})
    return states


def moment(old, new):
    """What happens between two states of the lock."""
    said, s, t = [], old["s"], new["s"]
    say = said.append
    live = lambda state, r: state["j"][r] in ("forked", "alive")
    ticks = [r for r in new["kill"] if live(old, r) and new["kill"][r] < old["kill"][r]]
    is_tick = ticks or (s["own"] == t["own"] and t["left"] < s["left"]) or (
        s["own"] != t["own"] == "none" and s["left"] == 1 and t["end"] == s["end"] and not t["q"])
    if is_tick:
        say("a tick passes")
        for r in new["kill"]:
            if live(old, r) and old["kill"][r] > 0:
                say(f"KILL of {r} is due" if new["kill"][r] == 0 else f"the clock of {r} misses it" if r not in ticks else "")
    for r in new["d"]:
        if new["att"][r]["op"] and new["att"][r]["rep"] == "" and new["att"][r] != old["att"][r] and not is_tick:
            say(f"{r} sends {new['att'][r]['op']}")
        if t["end"][r] != s["end"][r]:
            say(f"the token of {r} is {t['end'][r]}" if t["end"][r] != "no" else "")
        if len(t["q"]) > len(s["q"]) and r in t["q"] and r not in s["q"]:
            say(f"{r} joins the queue")
        rep = new["att"][r]["rep"]
        if rep != old["att"][r]["rep"] and rep in ("ok", "no"):
            say(f"the store answers {r}: {'yes' if rep == 'ok' else 'not yours'}")
    if s["of"] != t["of"] and t["own"] != "none":
        say(f"the store grants the lock to {t['own']}, fence {t['of']}, for {t['left']} tick{'s' * (t['left'] > 1)}")
    elif s["own"] != t["own"]:
        is_given_back = t["end"].get(s["own"]) == "released" != s["end"].get(s["own"])
        say(f"the lease of {s['own']} ends" if is_tick else "the lock is free" if is_given_back
            else f"the hold of {s['own']} is gone")
    elif t["left"] > s["left"]:
        say(f"the store extends the lease of {t['own']}")
    if t["rev"] and not s["rev"]:
        say(f"an operator takes the lock from {t['own']}")
    if new["up"] != old["up"]:
        say("the store answers again" if new["up"] else "the store is away")
    for r in new["d"]:
        a, b = old["d"][r], new["d"][r]
        if a != b:
            say({"run": f"{r} hears of the grant, and its guard is told to start CMD", "leave": f"{r} will give the lock back",
                 "stop": f"{r} hears that the lock is not its own", "dead": f"the dlock of {r} dies",
                 "good": f"{r} ends well", "bad": f"{r} ends with an error"}[b])
        elif b == "run" and new["kill"][r] > old["kill"][r]:
            say(f"{r} hears of its renewal: KILL moves on")
        if new["g"][r] == "dead" != old["g"][r]:
            say(f"the guard of {r} dies")
        for p in ("dlock", "guard"):
            if (p in new["still"][r]) != (p in old["still"][r]) and new["j"][r] == "alive":
                say(f"the {p} of {r} " + ("is stopped" if p in new["still"][r] else "goes on"))
        a, b = old["j"][r], new["j"][r]
        if a != b and b != "forked":
            say({"alive": f"the job of {r} STARTS", "dead": f"the job of {r} is dead" if a != "forked" else f"{r} does not start",
                 "escaped": f"a part of the job of {r} leaves the process tree"}[b])
    return "; ".join(filter(None, said)) or "a request arrives again, or a reply is lost"


def tick(old, new):
    """What happens between two states of `--once-per`."""
    said = [f"it is {new['time']} o'clock"] if new["time"] != old["time"] else []
    said += ["the store's clock is set back"] if new["back"] != old["back"] else []
    for r in new["st"]:
        a, b = old["st"][r], new["st"][r]
        if a != b:
            said.append({"asks": f"{r} comes", "runs": f"{r} is granted the lock", "skipped": f"{r} is SKIPPED",
                         "over": f"{r} " + ("SUCCEEDS" if old["wins"] != new["wins"] else "fails")}[b])
        elif new["came"][r] != old["came"][r]:
            said.append(f"{r} waits" if new["came"][r] else f"{r} loses its place")
    return "; ".join(said)


def clock(seconds):
    return f"{int(seconds) // 60} min {int(seconds) % 60} s" if seconds >= 60 else f"{seconds:.0f} s"


def main():
    jar, only = str(Path(sys.argv[1]).resolve()), sys.argv[2:]
    began, wrong = time.monotonic(), []
    modules = dict(GOOD + LONG)
    unknown = set(only) - {"broken"} - set(modules)
    if unknown:
        sys.exit(f"no such model: {', '.join(unknown)}")

    def check(model, changes, expected=None):
        start = time.monotonic()
        output = tlc(jar, modules[model], configuration(model, changes, expected))
        violated = re.search(r"(?:Invariant|Action property) (\w+) is violated", output)
        states = re.findall(r"^(\d+) states generated, (\d+) distinct", output, flags=re.M)
        if not states or not (violated or "No error has been found" in output):
            sys.exit(f"{model}: TLC failed\n{output}")
        made, distinct = (f"{int(n):,}" for n in states[-1])
        return output, violated and violated[1], f"{made} states, {distinct} of them distinct, {clock(time.monotonic() - start)}"

    for model, module in GOOD + LONG:
        if model not in (only or dict(GOOD)):
            continue
        output, violated, size = check(model, {})
        depth = re.search(r"depth of the complete state graph search is (\d+)", output)
        print(f"{model}: " + (f"{violated} IS VIOLATED" if violated else f"holds, {depth[1]} steps deep") + f": {size}", flush=True)
        if violated:
            wrong.append(model)
            tell(output, module)
    for what, model, changes, expected in BROKEN:
        if only and model not in only and "broken" not in only:
            continue
        output, violated, size = check(model, changes, expected)
        is_witness = expected.startswith("No")
        if violated != expected:
            wrong.append(what)
            print(f"WRONG: if not \"{what}\", {expected} is not violated, but {violated}: {size}", flush=True)
        elif is_witness:
            print(f"not true, as it must be: {what} ({size})", flush=True)
        else:
            print(f"\nif not \"{what}\": {BREACHES[expected]} ({size})", flush=True)
            tell(output, modules[model])
    print(f"\n{clock(time.monotonic() - began)} in all", flush=True)
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


def tell(output, module):
    states = trace(output)
    for number, (old, new) in enumerate(zip(states, states[1:]), 1):
        print(f"  {number:2} {(moment if module == 'dlock' else tick)(old, new)}", flush=True)


if __name__ == "__main__":
    main()
