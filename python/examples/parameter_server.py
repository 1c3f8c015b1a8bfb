"""A parameter server with atomics: rank 0 holds the parameters, the others take work and add to them.

    railyard launch -n 4 -- python3 python/examples/parameter_server.py

There is no server loop. Rank 0's memory holds a counter of work items, one fixed-point word for each parameter, and the
parameters are changed by the workers' additions. Integers in units of 2^-20 add up to the same sum in any order, which
floating-point numbers do not."""
import argparse

import numpy
import railyard
from railyard import AtomicOp

SERVER = 0
NEXT_ITEM = 0  # byte offsets in rank 0's window
PARAMETERS = 64
UNIT = 2.0**-20


def gradient(item, size):
    """What a worker computes from one item of data: the same whoever does it."""
    return numpy.random.default_rng(item).normal(size=size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=16)
    options = parser.parse_args()
    size = options.parameters
    with railyard.World() as world, railyard.Window.allocate(world, PARAMETERS + 8 * size) as window:
        taken = 0
        while (item := window.fetch_atomic(SERVER, NEXT_ITEM, AtomicOp.add, 1)) < options.items:
            parameters = numpy.zeros(size, "int64")
            window.get(SERVER, PARAMETERS, parameters).wait()  # what they are now: others may be adding
            for index, value in enumerate(numpy.rint(gradient(item, size) / UNIT).astype("int64")):
                window.atomic(SERVER, PARAMETERS + 8 * index, AtomicOp.add, int(value))
            taken += 1
        window.barrier()  # completes every rank's additions first
        print(f"rank {world.rank} took {taken} of {options.items} items")
        if world.rank == SERVER:
            found = window.array("int64", size, PARAMETERS)
            expected = sum(numpy.rint(gradient(item, size) / UNIT).astype("int64") for item in range(options.items))
            assert (found == expected).all(), "the parameters are wrong"
            print(f"{size} parameters, exact: first {found[0] * UNIT:+.4f}")


if __name__ == "__main__":
    main()
