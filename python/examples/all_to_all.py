"""All-to-all: every rank sends a different row to every other, and each row says itself when it is there.

    railyard launch -n 4 -- python3 python/examples/all_to_all.py

Two halves of the window take turns, and a rank that has read a half says so: nobody writes into a half that is still
being read. (Without those credits a fast rank could overwrite what a slow one has not seen.)"""
import argparse

import numpy
import railyard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--elements", type=int, default=4096, help="float64 from each rank to each")
    options = parser.parse_args()
    with railyard.World() as world:
        ranks, me, count = world.size, world.rank, options.elements
        # Signals: rows that have come from each rank, then credits that each rank has given us.
        with railyard.Window.allocate(world, 2 * ranks * count * 8, signals=2 * ranks) as window:
            halves = window.array("float64", (2, ranks, count))
            for turn in range(options.rounds):
                half = turn % 2
                rows = numpy.array([[turn * 1e6 + me * 1e3 + to] * count for to in range(ranks)], "float64")
                for step in range(ranks):
                    to = (me + step) % ranks  # not all to the same rank at the same time
                    if turn >= 2:
                        window.wait_signal(ranks + to, turn - 1, from_rank=to)
                    window.put_signal(to, (half * ranks + me) * count * 8, rows[to], signal=me)
                window.wait_all_signals([railyard.SignalCondition(rank, turn + 1, from_rank=rank)
                                         for rank in range(ranks)])
                expected = turn * 1e6 + numpy.arange(ranks) * 1e3 + me
                assert (halves[half] == expected[:, None]).all(), "a row is wrong"
                for rank in range(ranks):
                    window.signal(rank, ranks + me)
            window.barrier()
            moved = options.rounds * ranks * count * 8
            print(f"rank {me}: {options.rounds} rounds with {ranks} ranks, {moved >> 10} KiB, right")


if __name__ == "__main__":
    main()
