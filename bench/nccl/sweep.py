#!/usr/bin/env python3
"""Fourteen configurations of Railyard by ten patterns, every result checked; shared links against links of one's own.

All over libfabric tcp rails on loopback. Pairs of ranks of all configurations by turns, in changing order, --rounds times. Each
configuration that shares links is beside the same one without; a ratio is the median, over rounds, of the time with
sharing by the time without in that round. Ends with 0 if every element was right and no configuration's mean ratio over the
patterns, at any size, is over --bar.
"""
import argparse
import statistics
import sys

sys.dont_write_bytecode = True
import ranks  # noqa: E402
import tables  # noqa: E402

SIZES = [4 << 10, 256 << 10, 16 << 20]
OFF = 0  # no sharing


def configuration(rails, shared, eager=True, channels=4):
    name = (tables.several(rails, "rail") + (f", m = {shared}" if shared else ", own links") + ("" if eager else ", no eager")
            + (f", {tables.several(channels, 'channel')}" if channels != 4 else ""))
    settings = {"RAILYARD_SHARED_MEMORY": "off", "RAILYARD_INTERFACES": "lo", "RAILYARD_RAILS": str(rails),
                "RAILYARD_SHARED_LINKS": str(shared), "NCCL_MIN_NCHANNELS": str(channels), "NCCL_MAX_NCHANNELS": str(channels)}
    return name, settings if eager else {**settings, "RAILYARD_EAGER_BYTES": "0"}


# The same once more: what it differs by is noise.
CONTROL = ("4 rails, own links, again", configuration(4, OFF)[1])
# [(without sharing, [with it])]: 14 in all, and the control.
FAMILIES = [
    (configuration(1, OFF), [configuration(1, 1)]),
    (configuration(2, OFF), [configuration(2, 1)]),
    (configuration(4, OFF), [configuration(4, 1), configuration(4, 2), configuration(4, 4), CONTROL]),
    (configuration(4, OFF, eager=False), [configuration(4, 1, eager=False)]),
    (configuration(4, OFF, channels=1), [configuration(4, 1, channels=1)]),
    (configuration(4, OFF, channels=16), [configuration(4, 1, channels=16)]),
]


def work(names, sizes, batches):
    import patterns
    cells = []
    for name in names:
        for size in sizes:
            times, wrong = patterns.measure(patterns.PATTERNS[name](size), max(patterns.runs_of(size) // 2, 2), batches)
            cells.append({"pattern": name, "bytes": size, "us": statistics.median(times), "wrong": wrong})
    return cells


def measure(args, names, every):
    """[{configuration, round, pattern, bytes, us, wrong}]; `us` is rank 0's, `wrong` both ranks'."""
    rows = []
    with ranks.service(args) as environment:
        for number in range(args.rounds):
            for name, settings in every if number % 2 == 0 else reversed(every):
                transport = ranks.chosen(args, **settings)
                outcome = ranks.run_with(args, environment, work, transport, (names, args.sizes, args.batches))
                for cell, other in zip(*outcome.results):
                    rows.append({"configuration": name, "round": number, **cell, "wrong": cell["wrong"] + other["wrong"]})
                print(f"sweep: round {number + 1}, {name}: {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
    return rows


def ratio(rows, shared, own, cell):
    """The median over rounds of shared / own."""
    def times(name):
        return {row["round"]: row["us"] for row in rows
                if (row["configuration"], row["pattern"], row["bytes"]) == (name, *cell)}
    ours, theirs = times(shared), times(own)
    return statistics.median(ours[number] / theirs[number] for number in ours)


def print_tables(rows, names, sizes):
    """The times of all, and sharing against no sharing: {(configuration, bytes): the ratios, by pattern}."""
    for size in sizes:
        cells = {}
        for row in rows:
            if row["bytes"] == size:
                cells.setdefault((row["configuration"], row["pattern"]), []).append(row["us"])
        print(f"\n{tables.size_text(size)}, us of one run")
        print(tables.markdown(["configuration", *names],
                              [[title, *(f"{statistics.median(cells[title, name]):.0f}" for name in names)]
                               for title in dict.fromkeys(title for title, _ in cells)]))
    found, lines = {}, []
    for (own, _), sharing in FAMILIES:
        for shared, _ in sharing:
            for size in sizes:
                ratios = [ratio(rows, shared, own, (name, size)) for name in names]
                found[shared, size] = ratios
                lines.append([shared, tables.size_text(size), *(f"{value:.3f}" for value in ratios),
                              f"{statistics.geometric_mean(ratios):.3f}"])
    print("\ntime with shared links / time with links of one's own")
    print(tables.markdown(["configuration", "bytes", *names, "mean"], lines))
    return found


def judge(found, bar):
    """How many means are over the bar. Single cells are named too: those of the control say how much chance does."""
    over = 0
    for (title, size), ratios in found.items():
        mean, cells = statistics.geometric_mean(ratios), sum(value > bar for value in ratios)
        if title != CONTROL[0]:
            over += mean > bar
        print(f"{title} at {tables.size_text(size)}: mean {mean:.3f}, {cells} of {len(ratios)} cells over {bar}, "
              f"the worst {max(ratios):.3f}" + (": OVER THE BAR" if mean > bar and title != CONTROL[0] else ""))
    return over


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=60)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of each configuration (%(default)s)")
    parser.add_argument("--batches", type=int, default=3, help="measurements of a cell in one pair (%(default)s)")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES,
                        help="bytes, separated by commas (4 KiB, 256 KiB, 16 MiB)")
    parser.add_argument("--bar", type=float, default=1.03, help="most that a mean ratio may be (%(default)s)")
    args = ranks.parse(parser)
    import patterns
    names = [name for name, kind in patterns.PATTERNS.items() if kind.on_cpu or not args.cpu]
    every = [each for own, sharing in FAMILIES for each in (own, *sharing)]
    rows = measure(args, names, every)
    if args.json:
        tables.write_json(args.json, rows)
    found = print_tables(rows, names, args.sizes)
    wrong = sum(row["wrong"] for row in rows)
    print(f"\n{len(every) - 1} configurations and a control, {len(names)} patterns, {len(rows)} cells: {wrong} elements wrong")
    return 1 if wrong + judge(found, args.bar) else 0


if __name__ == "__main__":
    sys.exit(main())
