#!/usr/bin/env python3
"""PyTorch's symmetric memory on NVSHMEM between two ranks on one GPU: a put and an all-to-all, each checked.

bench/nvshmem/run symmetric starts both ranks: this program, with the rank and a file that both meet at.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

COUNT = 1 << 18
ROUNDS = 20
GPU = torch.device("cuda:0")  # with its number: the operators compare


def check(name, got, wanted):
    wrong = int((got != wanted).sum())
    print(f"rank {dist.get_rank()}: {name}: {wrong} of {got.numel()} elements wrong", flush=True)
    return wrong == 0


def main():
    rank = int(sys.argv[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(GPU)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}.torch", rank=rank, world_size=2)
    group = dist.group.WORLD.group_name
    symmetric.set_backend("NVSHMEM")
    peer = 1 - rank
    right = True

    memory = symmetric.empty(COUNT, dtype=torch.float32, device=GPU).fill_(rank)
    symmetric.rendezvous(memory, group=group)
    inbound = symmetric.empty(COUNT, dtype=torch.float32, device=GPU)
    outbound = symmetric.empty(COUNT, dtype=torch.float32, device=GPU)
    symmetric.rendezvous(inbound, group=group)
    symmetric.rendezvous(outbound, group=group)
    torch.cuda.synchronize()
    dist.barrier()

    # One side puts its memory over the peer's.
    if rank == 0:
        memory.fill_(42)
        torch.ops.symm_mem.nvshmem_put(memory, peer)
    torch.cuda.synchronize()
    dist.barrier()
    right &= check("put", memory, torch.full_like(memory, 42))

    half = COUNT // 2
    for turn in range(ROUNDS):
        outbound[:half] = 100 * turn + 10 * rank
        outbound[half:] = 100 * turn + 10 * rank + 1
        torch.cuda.synchronize()
        dist.barrier()
        torch.ops.symm_mem.nvshmem_all_to_all(outbound, inbound, group)
        torch.cuda.synchronize()
        dist.barrier()
        wanted = torch.empty_like(inbound)
        wanted[:half] = 100 * turn + rank
        wanted[half:] = 100 * turn + 10 + rank
        if turn in (0, ROUNDS - 1) or bool((inbound != wanted).any()):
            right &= check(f"all-to-all, round {turn}", inbound, wanted)
        dist.barrier()
    print(f"rank {rank}: {'everything was right' if right else 'something was wrong'}", flush=True)
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
