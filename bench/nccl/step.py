#!/usr/bin/env python3
"""The time of a training step over each transport: a transformer of eight layers, sharded over two ranks (FSDP2), bf16.

Socket, Railyard over shared memory and Railyard over four tcp rails take turns, a pair of ranks for each turn; every
loss must be the same in all of them, bit by bit. Ends with 0 if it is, and if a step over four tcp rails takes at most
--bar of Socket's.
"""
import argparse
import statistics
import sys
import time

sys.dont_write_bytecode = True
import ranks  # noqa: E402
import tables  # noqa: E402

WIDTH, HEADS, LAYERS, TOKENS, BATCH = 1024, 16, 8, 256, 4
WARM_UP = 5
SOCKET, LOCAL, TCP = "Socket", "Railyard, same host", "Railyard, 4 tcp rails"


def work(steps):
    import torch
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers = [torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
              for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).to(ranks.device(), torch.bfloat16)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    examples = torch.Generator().manual_seed(100 + torch.distributed.get_rank())
    losses, times = [], []
    for step in range(WARM_UP + steps):
        inputs = torch.randn(BATCH, TOKENS, WIDTH, generator=examples).to(ranks.device(), torch.bfloat16)
        ranks.synchronize()
        torch.distributed.barrier()
        begin = time.perf_counter()
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        ranks.synchronize()
        if step >= WARM_UP:
            times.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.item().hex())
    return {"losses": losses, "times_ms": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=90)
    parser.add_argument("--steps", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of each transport (%(default)s)")
    parser.add_argument("--bar", type=float, default=0.65, help="most that a step over tcp may take of Socket's (%(default)s)")
    args = ranks.parse(parser)
    every = [ranks.socket_transport(SOCKET, **args.settings), ranks.railyard_transport(args.library, LOCAL, **args.settings),
             ranks.railyard_transport(args.library, TCP, **{**ranks.TCP_RAILS, **args.settings})]
    outcomes = []
    with ranks.service(args) as environment:
        for _ in range(args.rounds):
            for transport in every:
                outcome = ranks.run_with(args, environment, work, transport, (args.steps,))
                outcomes += [{"transport": transport.name, "rank": rank, **result}
                             for rank, result in enumerate(outcome.results)]
    if args.json:
        tables.write_json(args.json, outcomes)
    steps = {transport.name: statistics.median([statistics.median(each["times_ms"]) for each in outcomes
                                                if each["transport"] == transport.name and each["rank"] == 0])
             for transport in every}
    print(tables.markdown(["transport", "ms a step", "of Socket's"],
                          [[name, f"{time_ms:.1f}", f"{time_ms / steps[SOCKET]:.2f}"] for name, time_ms in steps.items()]))
    same = all(len({tuple(each["losses"]) for each in outcomes if each["rank"] == rank}) == 1 for rank in range(2))
    print("losses: " + ("the same in all runs, bit by bit" if same else "NOT the same in all runs"))
    return 0 if same and steps[TCP] <= args.bar * steps[SOCKET] else 1


if __name__ == "__main__":
    sys.exit(main())
