"""Data-parallel training that survives a dead rail: gradients go to every rank by put_signal; a rail dies on the way, and
training goes on with the same numbers as if nothing had happened.

    railyard launch -n 2 -- python3 python/examples/training.py
    railyard launch -n 2 -- python3 python/examples/training.py --cut "ip link set rail1 down" --mend "ip link set rail1 up"

With torch installed the gradients are torch's, otherwise NumPy's; the exchange is the same. --cut is the command that
kills a rail, run by rank 0 after a third of the steps, --mend the one that brings it back after two thirds. On a machine
with one network card there is nothing to cut: tests/lab/rails makes two hosts with several rails out of network
namespaces (root), where the commands above work. RAILYARD_SHARED_MEMORY=off makes ranks of one host use rails."""
import argparse
import shlex
import subprocess

import numpy
import railyard

try:
    import torch
except ImportError:
    torch = None

INPUTS, HIDDEN = 64, 512
COUNT = INPUTS * HIDDEN + HIDDEN


def batch(step, rank):
    """This rank's data of one step."""
    chooser = numpy.random.default_rng((step, rank))
    inputs = chooser.normal(size=(32, INPUTS)).astype("float32")
    return inputs, numpy.sin(inputs.sum(axis=1, keepdims=True)).astype("float32")


def gradient_numpy(parameters, inputs, targets):
    """Gradient of the mean squared error of tanh(inputs @ first) @ second."""
    first = parameters[:INPUTS * HIDDEN].reshape(INPUTS, HIDDEN)
    second = parameters[INPUTS * HIDDEN:].reshape(HIDDEN, 1)
    hidden = numpy.tanh(inputs @ first)
    error = hidden @ second - targets
    slope = 2 * error / len(inputs)
    to_first = inputs.T @ ((slope @ second.T) * (1 - hidden**2))
    return numpy.concatenate([to_first.ravel(), (hidden.T @ slope).ravel()]), float((error**2).mean())


def gradient_torch(parameters, inputs, targets):
    """The same by torch."""
    weights = torch.from_numpy(parameters.copy()).requires_grad_()
    first = weights[:INPUTS * HIDDEN].reshape(INPUTS, HIDDEN)
    second = weights[INPUTS * HIDDEN:].reshape(HIDDEN, 1)
    loss = ((torch.tanh(torch.from_numpy(inputs) @ first) @ second - torch.from_numpy(targets)) ** 2).mean()
    loss.backward()
    return weights.grad.numpy(), float(loss)


gradient = gradient_torch if torch else gradient_numpy


def start():
    return (numpy.random.default_rng(1).normal(size=COUNT) * 0.05).astype("float32")


def train_alone(steps, ranks):
    """What the ranks together must come to, bit for bit: they add in the same order."""
    parameters = start()
    for step in range(steps):
        total = numpy.zeros(COUNT, "float32")
        for rank in range(ranks):
            total += gradient(parameters, *batch(step, rank))[0]
        parameters -= 0.05 / ranks * total
    return parameters


def run(command):
    print(f"$ {command}", flush=True)
    subprocess.run(shlex.split(command), check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cut", help="command that kills a rail")
    parser.add_argument("--mend", help="command that brings it back")
    options = parser.parse_args()
    with railyard.World() as world:
        ranks, me = world.size, world.rank
        # Two halves in turn. Nobody gets two steps ahead: it would need gradients that are sent after the half was read.
        with railyard.Window.allocate(world, 2 * ranks * COUNT * 4, signals=ranks) as window:
            halves = window.array("float32", (2, ranks, COUNT))
            parameters = start()
            losses = []
            for step in range(options.steps):
                if me == 0 and options.cut and step == options.steps // 3:
                    run(options.cut)
                if me == 0 and options.mend and step == options.steps * 2 // 3:
                    run(options.mend)
                mine, loss = gradient(parameters, *batch(step, me))
                losses.append(loss)
                half = step % 2
                for rank in range(ranks):
                    window.put_signal(rank, (half * ranks + me) * COUNT * 4, mine, signal=me)
                window.wait_all_signals([railyard.SignalCondition(rank, step + 1, from_rank=rank)
                                         for rank in range(ranks)])
                total = numpy.zeros(COUNT, "float32")
                for rank in range(ranks):
                    total += halves[half, rank]
                parameters -= 0.05 / ranks * total
            window.barrier()
            found = world.statistics()
            if me == 0:
                assert losses[-1] < losses[0], "it did not learn"
                assert (parameters == train_alone(options.steps, ranks)).all(), "the parameters are wrong"
                print(f"{options.steps} steps of {ranks} ranks by {'torch' if torch else 'NumPy'}: loss {losses[0]:.3f} to"
                      f" {losses[-1]:.3f}, parameters exact")
                for rail in found["rails"]:
                    print(f"  rail {rail['name']}: {rail['bytes_sent'] >> 10} KiB sent, {'up' if rail['up'] else 'down'}")
                print(f"  links lost {found['links_lost']}, rejoined {found['links_rejoined']}, chunks sent again"
                      f" {found['segments_replayed']}")
                if options.cut:
                    assert found["links_lost"] > 0, "no rail was lost: the command did not cut one in use"


if __name__ == "__main__":
    main()
