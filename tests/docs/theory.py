#!/usr/bin/env python3
"""Prints the picture of docs/protocol.md, "Theory of operation": processes, threads, the store, and the moments of a
lease. `theory.py light` or `theory.py dark`; the output is docs/pictures/theory-light.svg and theory-dark.svg."""

import sys
from html import escape

WIDTH, HEIGHT = 960, 674

# The colours of the other pictures: tests/docs/pictures.rs.
PALETTES = {
    "light": {
        "text": "#1f2328", "quiet": "#59636e", "ground": "#f6f8fa", "box": "#ffffff", "edge": "#8c959f",
        "red": "#cf222e", "green": "#116329", "brown": "#7d4e00", "blue": "#0550ae",
    },
    "dark": {
        "text": "#e6edf3", "quiet": "#9198a1", "ground": "#161b22", "box": "#0d1117", "edge": "#6e7681",
        "red": "#ff7b72", "green": "#56d364", "brown": "#e3b341", "blue": "#79c0ff",
    },
}


class Picture:
    def __init__(self, palette):
        self.palette = palette
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            "<defs>",
        ]
        for colour in ("blue", "brown", "red", "green", "edge"):
            self.lines.append(
                f'<marker id="{colour}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{palette[colour]}"/></marker>'
            )
        self.lines += [
            "</defs>",
            f'<rect width="100%" height="100%" rx="8" fill="{palette["ground"]}"/>',
            f'<g font-family="system-ui,\'Segoe UI\',\'DejaVu Sans\',sans-serif" font-size="13" fill="{palette["text"]}">',
        ]

    def text(self, x, y, words, colour=None, anchor="start", bold=False):
        more = f' fill="{self.palette[colour]}"' if colour else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="600"' if bold else ""
        self.lines.append(f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>')

    def box(self, x, y, width, height, dashed=False, fill="box"):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{self.palette[fill]}" stroke="{self.palette["edge"]}"{dash}/>'
        )

    def bar(self, x, y, width, colour):
        self.lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="14" rx="2" fill="{self.palette[colour]}" '
            f'fill-opacity="0.35" stroke="{self.palette[colour]}"/>'
        )

    def line(self, points, colour, start=False, end=False, dashed=False):
        more = f' marker-start="url(#{colour})"' if start else ""
        more += f' marker-end="url(#{colour})"' if end else ""
        more += ' stroke-dasharray="3 3"' if dashed else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.lines.append(
            f'<polyline points="{path}" fill="none" stroke="{self.palette[colour]}" stroke-width="1.5"{more}/>'
        )

    def whole(self):
        return "\n".join([*self.lines, "</g>", "</svg>"]) + "\n"


def processes(p):
    """Who is there, and who speaks with whom."""
    p.text(24, 30, "Processes and threads", bold=True)
    p.box(24, 44, 568, 316, dashed=True, fill="ground")
    p.text(38, 64, "one machine", "quiet")

    p.box(40, 78, 268, 132)
    p.text(54, 100, "dlock", bold=True)
    p.box(54, 112, 240, 38)
    p.text(66, 136, "main thread: takes, gives back")
    p.box(54, 160, 240, 38)
    p.text(66, 184, "lease thread: renews")

    p.box(40, 278, 252, 46)
    p.text(54, 306, "guard", bold=True)
    p.text(108, 306, "TERM and KILL in time")

    p.box(406, 278, 172, 46)
    p.text(418, 297, "the job", bold=True)
    p.text(418, 315, "CMD and descendants", "quiet")

    p.line([(72, 212), (72, 276)], "blue", end=True)
    p.text(82, 238, "shared memory:")
    p.text(82, 255, "TERM at, KILL at")
    p.line([(228, 212), (228, 276)], "edge", start=True, end=True)
    p.text(238, 238, "socket: start, signals, stop;")
    p.text(238, 255, "if it closes, the other one is gone")
    p.line([(294, 301), (404, 301)], "red", end=True)
    p.text(348, 292, "TERM, KILL", anchor="middle")

    p.text(644, 30, "The store: only its clock decides", bold=True)
    p.box(644, 44, 292, 316)
    for number, (name, says) in enumerate(
        [
            ("L", "token of the holder, end of lease"),
            ("hold", "holder, fence, owner"),
            ("queue", "waiters, by ticket"),
            ("fence", "the last number"),
            ("spent", "released tokens"),
            ("log, …", "how the last holds ended"),
        ]
    ):
        p.text(660, 74 + 24 * number, name, "blue", bold=True)
        p.text(714, 74 + 24 * number, says)
    p.text(660, 236, "Each operation is one atomic step:", "quiet")
    p.text(660, 254, "end what is over, decide, write,", "quiet")
    p.text(660, 272, "grant next.", "quiet")
    p.text(660, 336, "The other machines ask here, too.", "quiet")

    p.line([(296, 131), (642, 131)], "blue", start=True, end=True)
    p.text(322, 122, "acquire, wait, confirm; leave at the end", "blue")
    p.line([(296, 179), (642, 179)], "green", start=True, end=True)
    p.text(322, 170, "renew, each ttl/4", "green")
    p.line([(160, 326), (160, 347), (618, 347), (618, 302), (642, 302)], "brown", end=True, dashed=True)
    p.text(172, 342, "leave, if dlock is gone", "brown")


def lease(p):
    """The moments of a lease, with --ttl 30s."""
    left, second = 150, 24.6

    def at(seconds):
        return left + second * seconds

    top = 496
    p.text(24, 402, "A lease, with --ttl 30s: the moments count from before the last request that succeeded was sent", bold=True)
    for seconds, height, name, says, colour, anchor in [
        (0, 476, "sent", "0 s", "green", "start"),
        (7.5, 476, "renew", "7.5 s", "green", "start"),
        (23.7, 476, "TERM", "23.7 s", "brown", "end"),
        (29.1, 454, "KILL", "29.1 s", "red", "end"),
        (29.7, 432, "deadline, nothing of the job lives", "29.7 s", "red", "end"),
    ]:
        p.line([(at(seconds), height - 12), (at(seconds), top + 14)], colour)
        x = at(seconds) + (5 if anchor == "start" else -5)
        p.text(x, height, f"{name}: {says}", colour, anchor)
    p.text(24, top + 12, "the holder")
    p.bar(at(0), top, at(23.7) - at(0), "green")
    p.bar(at(23.7), top, at(29.1) - at(23.7), "brown")
    p.bar(at(29.1), top, at(29.7) - at(29.1), "red")
    p.text(at(11.85), top + 32, "the job runs", "quiet", "middle")
    p.text(at(26.4), top + 32, "the job may clean up", "quiet", "middle")

    store = top + 62
    p.text(24, store + 12, "the store")
    p.bar(at(0.5), store, at(30.5) - at(0.5), "blue")
    p.line([(at(0), top + 14), (at(0.5), store)], "edge", end=True)
    p.line([(at(30.5), store - 8), (at(30.5), store + 36)], "blue")
    p.text(at(0.5), store + 32, "request handled", "blue")
    p.text(at(30.5) - 5, store + 32, "ttl later the store lets go, and the next one may be granted the lock", "blue", "end")

    outage = store + 62
    p.text(24, outage + 12, "an outage")
    p.bar(at(7.4), outage, at(22.4) - at(7.4), "edge")
    p.bar(at(22.4), outage, at(23.4) - at(22.4), "green")
    p.text(at(7.4), outage + 32, "at worst it begins just before a renewal and lasts ttl/2", "quiet")
    p.text(at(23.4) + 6, outage + 12, "renewed, and before TERM", "green")


def main():
    picture = Picture(PALETTES[sys.argv[1]])
    processes(picture)
    lease(picture)
    sys.stdout.write(picture.whole())


main()
