#!/usr/bin/env python3
"""Aborts: communicators aborted with transfers under way, and a rank that is killed in the middle of training.

Aborts. Each round makes a communicator, starts a long transfer from rank 1 to rank 0 and has both ranks call ncclCommAbort
at a random moment in it. What NCCL gave back to the system is then taken again, as host memory of the same sizes, filled
with a pattern, and looked at once the other rank has ended too: a byte that changed was written by somebody who had been
told that the memory was gone.

Killed. Two ranks train; one is killed with SIGKILL in the middle. How long the survivor takes to end, and how it ends, over
Railyard and over NCCL's own Socket transport, each in turn. Torch decides what the survivor does: it ends itself.

Ends with 0 if no byte changed, no round hung, and the survivor ended over Railyard within --slower times what it took
over Socket.
"""
import argparse
import ctypes
import faulthandler
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import ranks  # noqa: E402
import tables  # noqa: E402

FLOAT32 = 7
PATTERN = 0x5A
HELD_MIB = 64  # taken again after each abort
HUNG_S = 20  # of a round after which a rank says where it is


def take_again():
    """Host memory as NCCL's staging buffers are: pinned, and plain pages."""
    import torch
    held = [torch.full((4 << 20,), PATTERN, dtype=torch.uint8).pin_memory() for _ in range(HELD_MIB // 8)]
    held += [torch.full((4 << 20,), PATTERN, dtype=torch.uint8) for _ in range(HELD_MIB // 8)]
    return held


def changed(held):
    return sum(int((part != PATTERN).sum()) for part in held)


def abort_rounds(rounds, seed):
    import communicators
    import torch
    import torch.distributed as dist
    rank, wrong, slowest = dist.get_rank(), 0, 0.0
    chance = random.Random(seed)
    data = torch.zeros(16 << 20, dtype=torch.float32, device=ranks.device())
    for number in range(rounds):
        if rank == 0 and number % 10 == 0:
            print(f"aborts: round {number} of {rounds}", file=sys.stderr, flush=True)
        pause = chance.choice((0.0, 0.001, 0.003, 0.01, 0.03)) * chance.random()
        lead = chance.choice((-1, 0, 1)) * 0.005
        faulthandler.dump_traceback_later(HUNG_S)
        communicator = communicators.ByNccl(f"abort {number}")
        library, stream = communicator.library, torch.cuda.Stream()
        transfer = library.ncclRecv if rank == 0 else library.ncclSend

        def start(elements):
            communicator.check(transfer(ctypes.c_void_p(data.data_ptr()), ctypes.c_size_t(elements), FLOAT32, 1 - rank,
                                        communicator.handle, ctypes.c_void_p(stream.cuda_stream)))

        start(1024)  # connects: the call waits for the other rank's
        stream.synchronize()
        # Rank 1 sends in only two rounds of three: in the others rank 0's receives wait for ever.
        if rank == 0 or number % 3 != 0:
            for _ in range(2):
                start(data.numel())
        time.sleep(pause + max(0.0, lead if rank == 0 else -lead))
        begin = time.perf_counter()
        communicator.check(library.ncclCommAbort(communicator.handle))
        slowest = max(slowest, time.perf_counter() - begin)
        held = take_again()
        time.sleep(0.02)
        ranks.meet(f"aborted {number}")
        wrong += changed(held)
        faulthandler.cancel_dump_traceback_later()
        del held
    return {"rounds": rounds, "changed": wrong, "slowest_s": slowest}


CHILD = """
import datetime, os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120))
torch.cuda.set_device(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
if {fsdp}:
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
best = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(100000):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    best.step()
    best.zero_grad()
    if step == 20:
        torch.cuda.synchronize()
        print("training", flush=True)
"""


def killed(transport, environment, limit, fsdp):
    """Seconds that the survivor takes to end after the other rank was killed, and how it ends."""
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port()), "WORLD_SIZE": "2",
              "NCCL_SOCKET_IFNAME": "lo", **environment, **transport.environment}
    for name in ("IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"):
        shared.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="railyard-killed-") as folder:
        children, logs = [], []
        for rank in range(2):
            log = open(os.path.join(folder, f"rank{rank}"), "w+", encoding="utf-8", errors="replace")
            logs.append(log)
            children.append(subprocess.Popen([sys.executable, "-c", CHILD.format(fsdp=fsdp)], stdout=log, stderr=subprocess.STDOUT,
                                             env={**shared, "RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}))
        try:
            until = time.monotonic() + 120
            while not all(b"training" in open(log.name, "rb").read() for log in logs):
                if time.monotonic() > until or any(child.poll() is not None for child in children):
                    raise ranks.PairFailed(f"{transport.name}: no training: {[open(log.name).read()[-2000:] for log in logs]}")
                time.sleep(0.05)
            time.sleep(0.5)
            children[1].send_signal(signal.SIGKILL)
            begin = time.monotonic()
            try:
                code = children[0].wait(timeout=limit)
                seconds = time.monotonic() - begin
            except subprocess.TimeoutExpired:
                code, seconds = None, limit
        finally:
            for child in children:
                child.kill()
                child.wait()
        return {"seconds": seconds, "code": code, "said": open(logs[0].name, errors="replace").read()[-1500:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ranks.add_arguments(parser, limit=400)
    parser.add_argument("--rounds", type=int, default=200, help="of aborts; 0: none (%(default)s)")
    parser.add_argument("--kills", type=int, default=2, help="for each transport; 0: none (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--slower", type=float, default=1.5, help="than over Socket (%(default)s)")
    parser.add_argument("--ddp", action="store_true", help="train by DistributedDataParallel instead of FSDP")
    args = ranks.parse(parser)
    failed, report = False, {"aborts": [], "killed": []}
    ways = {"shared memory": {}, "4 tcp rails": ranks.TCP_RAILS}
    for name, settings in ({"Socket": {}} if args.socket else ways).items() if args.rounds else ():
        transport = ranks.chosen(args, **{"NCCL_NET_PLUGIN_REF_COUNT": "1", **settings})
        with ranks.service(args) as environment:
            outcome = ranks.run_with(args, environment, abort_rounds, transport, (max(args.rounds // len(ways), 1), args.seed))
        for rank, result in enumerate(outcome.results):
            report["aborts"].append({"transport": name, "rank": rank, **result})
            failed |= result["changed"] != 0
    if report["aborts"]:
        print(tables.markdown(["aborts over", "rank", "rounds", "bytes changed", "slowest abort, s"],
                              [[row["transport"], row["rank"], row["rounds"], row["changed"], f"{row['slowest_s']:.2f}"]
                               for row in report["aborts"]]), flush=True)
    transports = [ranks.socket_transport()] + [ranks.railyard_transport(args.library, name, **{**settings, **args.settings})
                                               for name, settings in ways.items()]
    for turn in range(args.kills):
        for transport in transports:
            print(f"killed: turn {turn + 1} of {args.kills}, {transport.name}", file=sys.stderr, flush=True)
            with ranks.service(args) as environment:
                report["killed"].append({"transport": transport.name, "turn": turn,
                                         **killed(transport, environment, min(args.limit, 90), not args.ddp)})
    if report["killed"]:
        print(tables.markdown(["a rank is killed over", "the survivor ended after, s", "exit code"],
                              [[row["transport"], f"{row['seconds']:.1f}", row["code"]] for row in report["killed"]]))
        took = {transport.name: statistics.median(row["seconds"] for row in report["killed"] if row["transport"] == transport.name)
                for transport in transports}
        for name in ways:
            failed |= took[name] > args.slower * took["Socket"] + 2
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
