#!/usr/bin/env python3
"""Replays the histories of nights against the specification: TLC must find an order of steps of the store, each as dlock.tla
allows it, that explains what was seen of each key. `./test --judge DIR` runs it. README.md beside this file says more.

replay.py TLA2TOOLS.JAR FILE.jsonl[.gz]... [--plant]"""
import gzip, json, random, re, sys, time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True
import check

# A run's number is that of a process, less its key (history.rs).
PROCESSES = 8
# A busy machine that starts a program within a second delays no heartbeat for three seconds (judge/queues.rs).
BUSY, SHORT = "busy machine", 3_000_000_000


def read(path):
    path = Path(path)
    lines = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in lines.splitlines()]


def troubles(history):
    """The times in which waiters may not be heard of, and the runs that were hit, each with its first hit."""
    spans, begun, hit = [], defaultdict(list), {}
    for event in history:
        if event["process"] != "nemesis":
            continue
        if event.get("note") == "begins":
            begun[event["f"]].append(event["time"])
        elif event.get("note") == "ends":
            start = begun[event["f"]].pop(0)
            if event["f"] != BUSY or event["time"] - start >= SHORT:
                spans.append((start, event["time"]))
        else:
            hit.setdefault(event["value"], event["time"])
    return spans, hit


def keys(history, has_looks=True):
    """Of each key on which all locks are exclusive: its events, and what is known of its runs."""
    spans, hit = troubles(history)
    events = defaultdict(list)
    for event in history:
        if "key" in event:
            events[event["key"]].append(event)
    for key, events in sorted(events.items()):
        asks = {event["process"]: event for event in events if (event["f"], event["type"]) == ("acquire", "invoke")}
        if any(event.get("note") != "exclusive" for event in asks.values()):
            continue
        got = {event["process"]: event for event in events if (event["f"], event["type"]) == ("acquire", "ok")}
        released = {event["process"] for event in events if (event["f"], event["type"]) == ("release", "ok")}
        ended = {event["process"]: event["time"] for event in events if event["f"] == "acquire" and event["type"] != "invoke"}
        number = {process: at for at, process in enumerate(asks, 1)}
        fences = [got[process]["value"] if process in got else 0 for process in asks]
        silent = [number[process] for process, ask in asks.items() if process // PROCESSES in hit or any(
            start < ended.get(process, end) and end > ask["time"] for start, end in spans)]
        taken, begun = [], 1
        for event in events:
            what, process = (event["f"], event["type"]), event["process"]
            r = number.get(process, 0)
            if what == ("acquire", "invoke"):
                taken.append(dict(what="ask", r=r))
            elif what == ("acquire", "ok"):
                taken.append(dict(what="got", r=r))
            elif what == ("release", "invoke"):
                # Of a release that is not known to have succeeded the lease may end it as well.
                taken.append(dict(what="go" if process in released else "may", r=r))
            elif what == ("release", "ok"):
                taken.append(dict(what="gone", r=r))
            elif event["f"] == "expire":
                taken.append(dict(what="may", r=number[event["value"]]))
            elif what == ("look", "invoke"):
                begun = len(taken) + 1
            elif what == ("look", "ok") and has_looks:
                waiting = [number[int(one)] for one in event["note"].split() if int(one) in number]
                fence = event.get("value") or 0
                if fence and fence not in fences:
                    # A run was granted the lock, and no job of it was seen.
                    fences.append(fence)
                    taken.insert(begun - 1, dict(what="ask", r=len(fences)))
                    taken.insert(begun, dict(what="may", r=len(fences)))
                taken.append(dict(what="look", f=fence, w=waiting, **{"from": begun}))
        yield key, taken, fences, silent


def plants(found):
    """Keys with a fault each, of which the specification must allow none."""
    for key, events, fences, silent in found:
        got = [event["r"] for event in events if event["what"] == "got"]
        excused = {event["r"] for event in events if event["what"] == "may"}
        for a, b in zip(got, got[1:]):
            if {a, b} & excused:
                continue
            fallen = list(fences)
            fallen[a - 1], fallen[b - 1] = fences[b - 1], fences[a - 1]
            yield "a smaller fence", (key, list(map(without_looks, events)), fallen, silent)
            # The first job lives until the second one has begun.
            late = [event for event in events if event["what"] not in ("go", "gone") or event["r"] != a]
            at = 1 + next(at for at, event in enumerate(late) if event["what"] == "got" and event["r"] == b)
            moved = [event for event in events if event["what"] in ("go", "gone") and event["r"] == a]
            late = [without_looks(event) for event in late[:at] + moved + late[at:]]
            yield "a deadline that is late", (key, late, fences, silent)
        for a, b in {pair for event in events if event["what"] == "look" for pair in zip(event["w"], event["w"][1:])}:
            if not {a, b} & (excused | set(silent)) and {a, b} <= set(got):
                # Each has the other's turn.
                other = {a: b, b: a}
                turn = [{**event, "r": other.get(event["r"], event["r"])} if event["what"] in ("got", "go", "gone") else event
                        for event in events]
                swapped = list(fences)
                swapped[a - 1], swapped[b - 1] = fences[b - 1], fences[a - 1]
                yield "a grant out of order", (key, turn, swapped, silent)


def without_looks(event):
    """What a look saw at another moment proves nothing."""
    return dict(what="skip") if event["what"] == "look" else event


def module(found):
    """The history as constants of replay.tla. Fences become small numbers in the same order."""
    def text(value):
        if isinstance(value, dict):
            return "[" + ", ".join(f"{name} |-> {text(one)}" for name, one in value.items()) + "]"
        if isinstance(value, list):
            return f"<<{', '.join(map(text, value))}>>"
        if isinstance(value, set):
            return "{" + ", ".join(map(text, sorted(value))) + "}"
        return f'"{value}"' if isinstance(value, str) else str(value)

    records = []
    for _, events, fences, silent in found:
        rank = {0: 0, **{fence: at for at, fence in enumerate(sorted(set(fences) - {0}), 1)}}
        # The look that is open at each event: it has begun, and its answer has not come.
        looks = [(event["from"], at) for at, event in enumerate(events, 1) if event["what"] == "look"]
        small = [[event["what"], rank[event["f"]], event["w"]] if event["what"] == "look" else [event["what"], event.get("r", 0)]
                 for event in events]
        opened = [next((last for first, last in looks if first <= at <= last), 0) for at in range(1, len(events) + 1)]
        order = sorted((r for r, fence in enumerate(fences, 1) if fence), key=lambda r: fences[r - 1])
        records.append(text(dict(events=small, open=opened if looks else [], fences=[rank[fence] for fence in fences], order=order, silent=set(silent))))
    return f"---- MODULE recorded ----\nKeys == <<{', '.join(records)}>>\n====\n"


CONFIGURATION = """SPECIFICATION SpecReplay
CONSTANTS
  Runs = {1}
  None <- Nobody
  Same <- Nobody
  NoWait = {}
  TTL = 1
  TURN = 1
  STALE = 1
  KILL = 1
  Crashes = 0
  Slips = 0
  Forces = 0
  Outages = 0
  Grants = 0
  Dropped = {}
"""


def replay(jar, found):
    """The number of states, and which keys are explained."""
    output = check.tlc(jar, "replay", CONFIGURATION, {"recorded": module(found)}, workers=1)
    states = re.findall(r"^(\d+) states generated", output, flags=re.M)
    if "No error has been found" not in output:
        sys.exit(f"TLC failed\n{output[-3000:]}")
    explained = {int(at) - 1 for at in re.findall(r'<<"explained", (\d+)>>', output)}
    return int(states[-1]), [at in explained for at in range(len(found))]


def main():
    jar, plant = str(Path(sys.argv[1]).resolve()), "--plant" in sys.argv
    wrong = 0
    for path in (name for name in sys.argv[2:] if name != "--plant"):
        start, history = time.monotonic(), read(path)
        # After a store has forgotten or its clock was set, what it says of its locks may be old. Each master of a
        # quorum has a fence of its own until a run holds a majority.
        found = list(keys(history, has_looks=not re.search("forgetful|jumpy|quorum", path)))
        states, explained = replay(jar, found)
        why = [key for (key, *_), is_explained in zip(found, explained) if not is_explained]
        grants, looks = (sum(event["what"] == what for _, events, *_ in found for event in events) for what in ("got", "look"))
        print(f"{Path(path).name}: " + (f"NOT ALLOWED BY THE SPECIFICATION: {len(why)} keys: {', '.join(why)}" if why else "allowed by the specification")
              + f"; {grants} grants and {looks} looks of {len(found)} exclusive keys, {states:,} states, "
              + check.clock(time.monotonic() - start), flush=True)
        wrong += bool(why)
        if plant and not why:
            by_kind = defaultdict(list)
            for kind, one in plants(found):
                by_kind[kind].append(one)
            for kind, planted in by_kind.items():
                chosen = random.Random(1).sample(planted, min(20, len(planted)))
                states, explained = replay(jar, chosen)
                wrong += any(explained)
                print(f"  planted, {kind}: " + (f"{sum(explained)} ALLOWED" if any(explained) else f"all {len(chosen)} refused")
                      + f", {states:,} states", flush=True)
    sys.exit(f"{wrong} verdicts are wrong" if wrong else 0)


if __name__ == "__main__":
    main()
