#!/usr/bin/env python3
"""Communicators made, used once and destroyed, a thousand times: what the process holds afterwards is what it held before.

--at-once of them live at a time. When the last of these ends the plugin closes everything it has; with --beside one more lives
through all cycles. NCCL 2.28 forgets the name of a plugin that it has unloaded, so NCCL_NET_PLUGIN_REF_COUNT=1 keeps it loaded. The first two rounds are not counted: caches fill then. Ends with 0 if
nothing grew in either rank and every result was right.
"""
import argparse
import os
import pathlib
import sys
import time

sys.dont_write_bytecode = True
import ranks  # noqa: E402
import tables  # noqa: E402

# What all cycles together may add: nothing to what is counted; to memory, less than a page in each.
MAY_GROW = {"descriptors": 0, "threads": 0, "mappings": 8, "shared_memory": 0, "resident_kib": 3000}


def shared_memory_of(pid):
    """Objects of shared memory that this process has open or mapped: others may run on the machine."""
    names = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.islink(entry.path)}
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    names |= {line.split(maxsplit=5)[-1] for line in maps if "/dev/shm/" in line}
    return sum("/dev/shm/" in name for name in names)


def holdings(cycle):
    """What this process holds while neither rank does anything."""
    ranks.meet(f"before the look at {cycle}")
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    found = {"cycle": cycle, "descriptors": len(os.listdir("/proc/self/fd")), "threads": int(status["Threads"]),
             "mappings": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
             "shared_memory": shared_memory_of(os.getpid()), "resident_kib": int(status["VmRSS"].split()[0])}
    ranks.meet(f"after the look at {cycle}")
    return found


def work(way, cycles, at_once, size, looks, beside):
    import communicators
    import patterns
    kind, taken = communicators.WAYS[way], dict.fromkeys(("make", "use", "destroy"), 0.0)

    def timed(name, call, *arguments):
        begin = time.perf_counter()
        result = call(*arguments)
        taken[name] += time.perf_counter() - begin
        return result

    def cycle(numbers):
        """Makes one communicator for each number, uses each, destroys all; how many elements were wrong."""
        made = [timed("make", kind, number) for number in numbers]
        wrong = 0
        for number, communicator in zip(numbers, made):
            pattern = patterns.AllReduce(size, seed=number)
            pattern.start()
            pattern.runs = 1
            timed("use", communicator.all_reduce, pattern.data)
            wrong += pattern.wrong()
        timed("destroy", kind.destroy, made)
        return wrong

    other = kind("beside") if beside else None
    if other:
        other.all_reduce(patterns.numbers(0, 1024, 0))
    wrong, done = cycle(range(at_once)) + cycle(range(at_once, 2 * at_once)), 0
    seen = [holdings(0)]
    taken.update(dict.fromkeys(taken, 0.0))
    while done < cycles:
        wrong += cycle(range(2 * at_once + done, 2 * at_once + done + at_once))
        done += at_once
        if done * looks // cycles > (done - at_once) * looks // cycles:
            seen.append(holdings(done))
    if other:
        kind.destroy([other])
    return {"seen": seen, "wrong": wrong, "milliseconds": {name: seconds / done * 1e3 for name, seconds in taken.items()}}


def grown(result):
    first, last = result["seen"][0], result["seen"][-1]
    return {name: last[name] - first[name] for name in MAY_GROW if last[name] - first[name] > MAY_GROW[name]}


def print_report(results):
    bad = 0
    for rank, result in enumerate(results):
        print(tables.markdown([f"rank {rank}, after cycle", *MAY_GROW],
                              [[row["cycle"], *(row[name] for name in MAY_GROW)] for row in result["seen"]]))
        growth = grown(result)
        bad += len(growth) + result["wrong"]
        taken = ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in result["milliseconds"].items())
        print(f"rank {rank}: {result['seen'][-1]['cycle']} cycles ({taken}), {result['wrong']} elements wrong, "
              + ("grew: " + ", ".join(f"{name} by {by}" for name, by in growth.items()) if growth else "nothing grew"))
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=560)
    parser.add_argument("--cycles", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--at-once", type=int, default=16, metavar="N", help="communicators alive at a time (%(default)s)")
    parser.add_argument("--by", choices=("nccl", "torch"), default="nccl",
                        help="who makes them: NCCL's own calls, or torch's new_group, with half a second for each (%(default)s)")
    parser.add_argument("--beside", action="store_true", help="one more communicator stays alive")
    parser.add_argument("--bytes", type=int, default=64 << 10, help="of the all-reduce of a cycle (%(default)s)")
    parser.add_argument("--looks", type=int, default=5, help="at what the process holds (%(default)s)")
    args = ranks.parse(parser)
    if min(args.cycles, args.at_once, args.looks) < 1:
        parser.error("--cycles, --at-once and --looks are at least 1")
    way = "torch" if args.cpu else args.by
    with ranks.service(args) as environment:
        outcome = ranks.run_with(args, environment, work, ranks.chosen(args, NCCL_NET_PLUGIN_REF_COUNT="1"),
                                 (way, args.cycles, args.at_once, args.bytes, args.looks, args.beside))
    if args.json:
        tables.write_json(args.json, {"by": way, "ranks": outcome.results, "logs": outcome.logs})
    return 1 if print_report(outcome.results) else 0


if __name__ == "__main__":
    sys.exit(main())
