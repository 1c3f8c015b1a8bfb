"""What was measured, as tables; what the bars are, and whether they were met."""
import statistics

from candidates import LATENCY, UNITS

CLASSES = ("near", "far")
MIDDLE = (8, 64, 256, 512, 1024, 2048, 4096)
TITLES = {
    "latency": "fi_rdm_tagged_pingpong, one way, us",
    "bandwidth": "fi_rdm_tagged_bw, MB/s",
    "window2000": "fi_rdm_tagged_bw -W 2000, MB/s",
    "write": "fi_rma_bw -o write, MB/s",
    "read": "fi_rma_bw -o read, MB/s",
    "pair_latency": "a message into the receiver's own memory, one way, us",
    "pair_bandwidth": "a stream of messages, 64 at a time, MB/s",
    "put_latency": "a put that nobody reads, one way, us",
    "put_bandwidth": "puts that nobody reads, MB/s",
}
# Ours / libfabric main's shm, as the requirements state it: at most so much of a latency, at least so much of a bandwidth.
PROVIDER_BARS = {
    "latency": {8: 0.6, 64: 0.6, 256: 0.6, 512: 0.6, 1024: 0.6, 2048: 0.7, 4096: 0.85, 65536: 0.5, 1048576: 0.6},
    "bandwidth": {8: 1.7, 64: 2, 256: 3, 512: 2.5, 1024: 2, 2048: 1.5, 4096: 1.5, 65536: 1.8, 1048576: 1.5},
    "write": dict.fromkeys(MIDDLE, 2),
    "read": dict.fromkeys(MIDDLE, 5),
}
PROVIDER_BARS["window2000"] = PROVIDER_BARS["bandwidth"]
BARRED_VERSION = "main"
OURS, FLOOR, OF_FLOOR = "railyard window", "floor", 1.6


class Samples:
    """Everything measured. A sample is a dictionary, as it goes into the JSON file."""

    def __init__(self, rows):
        self.rows = rows

    def values(self, where, test, name, size):
        return [row["value"] for row in self.rows
                if (row["class"], row["test"], row["candidate"], row["bytes"]) == (where, test, name, size)]

    def median(self, where, test, name, size):
        values = self.values(where, test, name, size)
        return statistics.median(values) if values else None

    def names(self, test):
        return list(dict.fromkeys(row["candidate"] for row in self.rows if row["test"] == test))

    def sizes(self, test):
        return sorted({row["bytes"] for row in self.rows if row["test"] == test})


class Report:
    """Markdown, and a count of the bars that were met, missed, or not measured often enough to say."""

    def __init__(self, samples, least):
        self.samples, self.least = samples, least
        self.lines, self.met, self.missed, self.unsure = [], 0, 0, 0

    def text(self):
        return "\n".join(self.lines) + "\n"

    def table(self, title, head, rows):
        if rows:
            self.lines += ["", f"{title}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
            self.lines += [f"| {' | '.join(row)} |" for row in rows]

    def figure(self, where, test, name, size):
        values = self.samples.values(where, test, name, size)
        if not values:
            return ""
        value = statistics.median(values)
        few = "" if len(values) >= self.least else f" ({len(values)} of {self.least})"
        return (f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}") + few

    def ratio(self, where, test, ours, theirs, size):
        left, right = (self.samples.median(where, test, name, size) for name in (ours, theirs))
        return left / right if left and right else None

    def enough(self, where, test, size, *names):
        return all(len(self.samples.values(where, test, name, size)) >= self.least for name in names)

    def judge(self, test, ratio, bar, sure):
        """The cells of a bar: what it is, and what became of it."""
        if bar is None or ratio is None:
            return ["", ""]
        below = UNITS[test] == LATENCY
        met = ratio <= bar if below else ratio >= bar
        if not sure:
            self.unsure += 1
        elif met:
            self.met += 1
        else:
            self.missed += 1
        verdict = ("met" if met else "**missed**") + ("" if sure else "?")
        return [f"{'<=' if below else '>='} {bar:g}", verdict]

    def provider(self, version, test):
        """Ours beside libfabric's own, both driven by the fabtests of one version; near and far cores side by side."""
        ours, theirs = f"railyard ({version})", f"shm ({version})"
        rows = []
        for size in self.samples.sizes(test):
            bar = PROVIDER_BARS[test].get(size) if version == BARRED_VERSION else None
            cells, verdicts = [], []
            for where in CLASSES:
                ratio = self.ratio(where, test, ours, theirs, size)
                cells += [self.figure(where, test, ours, size), self.figure(where, test, theirs, size),
                          "" if ratio is None else f"{ratio:.2f}"]
                verdicts.append(self.judge(test, ratio, bar, self.enough(where, test, size, ours, theirs)))
            if any(cells):
                bars, ends = zip(*verdicts)
                rows.append([str(size), *cells, max(bars), *ends])
        head = [f"{where}: {what}" for where in CLASSES for what in ("railyard", "shm", "ratio")]
        self.table(f"{TITLES[test]}; libfabric {version}", ["bytes", *head, "bar", *CLASSES], rows)

    def pair(self, test):
        """All that move a message between two processes, in one table, and how ours stands to each."""
        names = self.samples.names(test)
        peers = [name for name in names if name not in (OURS, FLOOR)]
        for where in CLASSES:
            rows = []
            for size in self.samples.sizes(test):
                figures = [self.figure(where, test, name, size) for name in names]
                if not any(figures):
                    continue
                rows.append([str(size), *figures, *self.beside_floor(where, test, size),
                             *self.beside_peers(where, test, size, peers)])
            self.table(f"{TITLES[test]}; cores {where}",
                       ["bytes", *names, "ours/floor", "bar", "", "ours/best peer", "bar", ""], rows)

    def beside_floor(self, where, test, size):
        ratio = self.ratio(where, test, OURS, FLOOR, size)
        bar = OF_FLOOR if test == "pair_latency" and size in MIDDLE else None
        sure = self.enough(where, test, size, OURS, FLOOR)
        return ["" if ratio is None else f"{ratio:.2f}", *self.judge(test, ratio, bar, sure)]

    def beside_peers(self, where, test, size, peers):
        """The best of them decides: faster than it is faster than all."""
        ratios = [(ratio, name) for name in peers if (ratio := self.ratio(where, test, OURS, name, size)) is not None]
        if not ratios:
            return ["", "", ""]
        ratio, name = max(ratios) if UNITS[test] == LATENCY else min(ratios)
        return [f"{ratio:.2f} ({name})", *self.judge(test, ratio, 1, self.enough(where, test, size, OURS, name))]

    def all(self, tests):
        names = [name for test in PROVIDER_BARS for name in self.samples.names(test)]
        for version in dict.fromkeys(name[name.index("(") + 1:-1] for name in names):
            for test in tests:
                if test in PROVIDER_BARS:
                    self.provider(version, test)
        for test in tests:
            if test not in PROVIDER_BARS:
                self.pair(test)
