#!/usr/bin/env python3
"""Every collective of torch.distributed over one transport, 8 B to 1 GiB, every element of every result checked.

Then many communicators at once, each with an all-reduce of its own under way. Ends with 0 if every element was right.
"""
import argparse
import statistics
import sys

sys.dont_write_bytecode = True
import ranks  # noqa: E402
import tables  # noqa: E402

# Powers of eight, and sizes that are no multiple of anything.
SIZES = [8 << 3 * power for power in range(9)] + [1 << 30, 24, 4104, 1000008, (16 << 20) + 8]


def work(sizes, names, communicators, batches):
    import torch.distributed as dist
    import patterns
    rows = []
    for name in names:
        for size in sizes:
            times, wrong = patterns.measure(patterns.PATTERNS[name](size), patterns.runs_of(size), batches)
            rows.append({"pattern": name, "bytes": size, "times_us": times, "wrong": wrong})
    groups = [dist.new_group([0, 1]) for _ in range(communicators)]
    every = [patterns.Burst(256 << 10, group, seed) for seed, group in enumerate(groups)]
    for pattern in every:
        pattern.start()
    for _ in range(3):
        for pattern in every:
            pattern.run()
    wrong = sum(pattern.wrong() for pattern in every)
    for group in groups:
        dist.destroy_process_group(group)
    return {"rows": rows, "communicators": communicators, "wrong_in_communicators": wrong}


def names_for(args):
    import patterns
    unknown = set(args.patterns or ()) - set(patterns.PATTERNS)
    if unknown:
        sys.exit(f"collectives: no pattern {', '.join(sorted(unknown))}: there are {', '.join(patterns.PATTERNS)}")
    return [name for name, kind in patterns.PATTERNS.items()
            if (not args.patterns or name in args.patterns) and (kind.on_cpu or not args.cpu)]


def print_report(results):
    first, second = results
    wrong = {(row["pattern"], row["bytes"]): row["wrong"] + other["wrong"]
             for row, other in zip(first["rows"], second["rows"])}
    times = {(row["pattern"], row["bytes"]): statistics.median(row["times_us"]) for row in first["rows"]}
    names = list(dict.fromkeys(name for name, _ in times))
    print(tables.markdown(["us of one run", *names],
                          [[tables.size_text(size), *(f"{times[name, size]:.1f}" for name in names)]
                           for size in sorted({size for _, size in times})]))
    among = first["wrong_in_communicators"] + second["wrong_in_communicators"]
    bad = sum(wrong.values()) + among
    for (name, size), count in wrong.items():
        if count:
            print(f"{name} of {size} bytes: {count} elements wrong")
    print(f"{len(times)} cells in two ranks, {first['communicators']} communicators at once: {bad} elements wrong")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=240)
    parser.add_argument("--largest", type=int, default=1 << 30, metavar="BYTES", help="leave out larger sizes")
    parser.add_argument("--communicators", type=int, default=32, help="at once (%(default)s)")
    parser.add_argument("--batches", type=int, default=2, help="measurements of each cell (%(default)s)")
    parser.add_argument("--patterns", type=lambda text: text.split(","), help="only these, separated by commas")
    args = ranks.parse(parser)
    sizes = sorted(size for size in SIZES if size <= args.largest)
    with ranks.service(args) as environment:
        outcome = ranks.run_with(args, environment, work, ranks.chosen(args),
                                 (sizes, names_for(args), args.communicators, args.batches))
    if args.json:
        tables.write_json(args.json, {"ranks": outcome.results, "logs": outcome.logs, "seconds": outcome.seconds})
    return 1 if print_report(outcome.results) else 0


if __name__ == "__main__":
    sys.exit(main())
