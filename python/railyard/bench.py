"""What Python costs: the tests of `railyard bench`, made with this package. Figures are dicts.

    railyard launch -n 2 -- python3 -m railyard.bench put_signal --bytes 8 --json -
    railyard launch -n 2 -- python3 -m railyard.bench put --bytes 1M
"""
import argparse
import itertools
import json
import os
import statistics
import sys
import time

import railyard

_IN_FLIGHT = 8 << 20  # as `railyard bench` has
_PING, _OVER = 0, 1
TESTS = ("put_signal", "put", "get", "atomic", "call")


def _pin(rank):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


class _Pair:
    """Rank 0 measures, rank 1 answers."""

    def __init__(self, world, test, size):
        self.world, self.test, self.size = world, test, size
        self.slots = 1 if test not in ("put", "get") else min(max(_IN_FLIGHT // max(size, 1), 4), 1024)
        self.window = railyard.Window.allocate(world, max(size, 8) * self.slots + 64)
        self.memory = bytearray(max(size, 8) * self.slots)
        self.views = [memoryview(self.memory)[i * size:(i + 1) * size] for i in range(self.slots)]
        for i, view in enumerate(self.views):
            view[:] = bytes((i * 7 + k) % 251 for k in range(min(size, 256))) * (size // 256) if size >= 256 else bytes(
                (i * 7 + k) % 251 for k in range(size))
        world.remember(self.memory)
        self.pings = self.rounds = 0

    def source(self, count):
        window, views, size, slots = self.window, self.views, self.size, self.slots
        began = time.perf_counter()
        if self.test == "put_signal":
            source = views[0]
            for number in range(self.pings + 1, self.pings + count + 1):
                window.put_signal(1, 0, source, _PING)
                window.wait_signal(_PING, number)
        elif self.test == "call":
            source = views[0]
            for _ in range(count):
                window.put_signal(1, 0, source, 2)
        elif self.test == "atomic":
            for _ in range(count):
                window.fetch_atomic(1, 0, railyard.AtomicOp.add, 1)
        else:
            operation = window.put if self.test == "put" else window.get
            places = [(slot, slot * size, views[slot]) for slot in range(slots)]
            tickets = [operation(1, offset, view) for _, offset, view in places]
            for slot, offset, view in itertools.islice(itertools.cycle(places), count - slots):
                tickets[slot].wait()
                tickets[slot] = operation(1, offset, view)
            window.quiet(1)
        seconds = time.perf_counter() - began
        window.signal(1, _OVER)
        return seconds

    def target(self, count):
        window, source = self.window, self.views[0]
        if self.test == "put_signal":
            for number in range(self.pings + 1, self.pings + count + 1):
                window.wait_signal(_PING, number)
                window.put_signal(0, 0, source, _PING)
        window.wait_signal(_OVER, self.rounds + 1)
        if self.test == "put" and count >= self.slots:
            if self.window.local[:self.size * self.slots] != self.memory[:self.size * self.slots]:
                raise SystemExit("railyard.bench: wrong data")

    def round(self, count):
        """Seconds of `count` operations, on both ranks."""
        shared = self.window.array("float64", 1, self.window.bytes(0) - 8)
        words = self.window.array("int64", 1, self.window.bytes(0) - 16)
        if self.world.rank == 0:
            self.window.put_value(1, self.window.bytes(1) - 16, count)
        self.window.barrier()
        if self.world.rank == 0:
            seconds = self.source(count)
            self.window.put_value(1, self.window.bytes(1) - 8, seconds)
        else:
            count = int(words[0])
            self.target(count)
        self.pings += count if self.test == "put_signal" else 0
        self.rounds += 1
        self.window.barrier()
        return seconds if self.world.rank == 0 else float(shared[0])


def run(world, test, size, rounds=7, round_s=0.2):
    """Runs one test between the two ranks of a world; both get the figures: a dict with test, bytes, unit, median, all."""
    if world.size != 2:
        raise ValueError("a bench is between 2 ranks")
    pair = _Pair(world, test, size)
    count = pair.slots
    while (seconds := pair.round(count)) < round_s / 4:
        count = max(count + 1, int(count * min(50, round_s / max(seconds, 1e-9))))
    count = max(pair.slots, int(count * round_s / seconds))
    times = [pair.round(count) for _ in range(rounds)]
    stream = test in ("put", "get")
    figures = [size * count / one / 1e6 if stream else one * 1e6 / count for one in times]
    pair.window.close()
    world.forget(pair.memory)
    return {
        "test": test, "bytes": size, "unit": "MB/s" if stream else "us", "median": statistics.median(figures),
        "all": figures, "operations_per_round": count, "rails": world.rail_count, "language": "python",
    }


def _size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m railyard.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", choices=TESTS, help="put_signal, atomic: us there and back; call: us of one put_signal "
                        "call; put, get: MB/s of a stream")
    parser.add_argument("--bytes", type=_size, default=None, help="of one operation: 8, 64K, 1M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-ms", type=int, default=200)
    parser.add_argument("--no-pin", action="store_true", help="do not pin the ranks to different cores")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE; - is the standard output")
    options = parser.parse_args(arguments)
    with railyard.World() as world:
        if world.size != 2:
            parser.error("a bench is between 2 ranks: railyard launch -n 2 -- python3 -m railyard.bench ...")
        if not options.no_pin:
            _pin(world.rank)
        size = options.bytes if options.bytes is not None else 1 << 20 if options.test in ("put", "get") else 8
        figures = run(world, options.test, size, options.rounds, options.round_ms / 1000)
        if world.rank == 0:
            if options.json == "-":
                json.dump(figures, sys.stdout, indent=2)
                print()
            elif options.json:
                with open(options.json, "w") as file:
                    json.dump(figures, file, indent=2)
            else:
                print(f"{figures['test']}, {figures['bytes']} bytes: {figures['median']:.3f} {figures['unit']}"
                      f" (median of {options.rounds} rounds)")


if __name__ == "__main__":
    main()
