"""Ten ways for two ranks to exchange memory; each knows what the result must be and counts what is not so.

Numbers are small and whole: sums of floats are exact, whatever order they are added in. What is to be written is
poisoned before.
"""
import time

import torch
import torch.distributed as dist

import ranks

MOST_RUNS = 100  # a sum in place doubles with every run: so many fit into a float
POISON = -1.0
BURST = 16


def numbers(rank, count, seed):
    places = torch.arange(count, dtype=torch.int32, device=ranks.device())
    return ((places * 7 + (rank * 101 + seed * 13)) % 251).to(torch.float32)


class Pattern:
    """`size` is in bytes, as nccl-tests counts them: the larger of what a rank puts in and gets out."""
    on_cpu = True  # every gloo can do it too

    def __init__(self, size, group=None, seed=0):
        self.rank, self.group, self.seed = dist.get_rank(), group, seed
        self.count = max(size // 8, 1) * 2
        self.half = self.count // 2
        self.runs = 0

    def of(self, rank, count=None):
        return numbers(rank, self.count if count is None else count, self.seed)

    def start(self):
        """Fresh memory: every run after this one is accounted for in `wrong`."""
        self.runs = 0
        self.fill()

    def run(self):
        self.runs += 1
        self.move()

    def wrong(self):
        """How many elements are not what they must be."""
        return sum(int((got != wanted).sum().item()) for got, wanted in self.compare())


class AllReduce(Pattern):
    def fill(self):
        self.data = self.of(self.rank)

    def move(self):
        dist.all_reduce(self.data, group=self.group)

    def compare(self):
        yield self.data, (self.of(0) + self.of(1)) * 2.0 ** (self.runs - 1)


class Burst(AllReduce):
    """As a training step does it: several all-reduces under way at a time."""

    def fill(self):
        super().fill()
        self.parts = self.data.chunk(BURST)

    def move(self):
        for work in [dist.all_reduce(part, group=self.group, async_op=True) for part in self.parts]:
            work.wait()


class Reduce(Pattern):
    on_cpu = False  # gloo spoils what the other rank puts in

    def fill(self):
        self.data = self.of(self.rank)

    def move(self):
        dist.reduce(self.data, dst=1, group=self.group)

    def compare(self):
        if self.rank == 1:
            yield self.data, self.of(1) + self.runs * self.of(0)


class Broadcast(Pattern):
    def fill(self):
        self.data = self.of(0) if self.rank == 0 else torch.full((self.count,), POISON, device=ranks.device())

    def move(self):
        dist.broadcast(self.data, src=0, group=self.group)

    def compare(self):
        yield self.data, self.of(0)


class TwoSided(Pattern):
    """What has one tensor to give and one to take."""
    gives, takes = 1.0, 1.0  # of `size`

    def fill(self):
        self.given = self.of(self.rank, int(self.count * self.gives))
        self.taken = torch.full((int(self.count * self.takes),), POISON, device=ranks.device())


class AllGather(TwoSided):
    gives, on_cpu = 0.5, False

    def move(self):
        dist.all_gather_into_tensor(self.taken, self.given, group=self.group)

    def compare(self):
        yield self.taken, torch.cat([self.of(0, self.half), self.of(1, self.half)])


class ReduceScatter(TwoSided):
    takes, on_cpu = 0.5, False

    def move(self):
        dist.reduce_scatter_tensor(self.taken, self.given, group=self.group)

    def compare(self):
        yield self.taken, (self.of(0) + self.of(1)).chunk(2)[self.rank]


class AllToAll(TwoSided):
    on_cpu = False

    def move(self):
        dist.all_to_all_single(self.taken, self.given, group=self.group)

    def compare(self):
        yield self.taken, torch.cat([self.of(rank).chunk(2)[self.rank] for rank in range(2)])


class AllToAllUneven(TwoSided):
    """A quarter stays, three go to the other side."""
    on_cpu = False

    def fill(self):
        super().fill()
        self.stays = self.count // 4

    def split(self, rank):
        sizes = [self.stays, self.count - self.stays]
        return sizes if rank == 0 else sizes[::-1]

    def move(self):
        dist.all_to_all_single(self.taken, self.given, self.split(self.rank), self.split(self.rank), group=self.group)

    def compare(self):
        yield self.taken, torch.cat([self.of(rank).split(self.split(rank))[self.rank] for rank in range(2)])


class SendReceive(TwoSided):
    """Both ways at once."""

    def move(self):
        peer = 1 - self.rank
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, self.given, peer, self.group),
                                            dist.P2POp(dist.irecv, self.taken, peer, self.group)]):
            work.wait()

    def compare(self):
        yield self.taken, self.of(1 - self.rank)


class PingPong(TwoSided):
    """There, and then back what came."""

    def move(self):
        if self.rank == 0:
            dist.send(self.given, 1, group=self.group)
            dist.recv(self.taken, 1, group=self.group)
        else:
            dist.recv(self.taken, 0, group=self.group)
            dist.send(self.taken, 0, group=self.group)

    def compare(self):
        yield self.taken, self.of(0)


PATTERNS = {"all_reduce": AllReduce, "all_gather": AllGather, "reduce_scatter": ReduceScatter, "all_to_all": AllToAll,
            "broadcast": Broadcast, "send_recv": SendReceive, "reduce": Reduce, "ping_pong": PingPong,
            "all_to_all_uneven": AllToAllUneven, "burst": Burst}


def runs_of(size):
    """How often a size is run in one measurement: the same in both ranks."""
    for most, runs in ((1 << 20, 40), (16 << 20, 10), (128 << 20, 4)):
        if size <= most:
            return runs
    return 2


def measure(pattern, runs, batches):
    """Microseconds of one run, by batch of `runs` one right after the other; and how many elements were wrong."""
    pattern.start()
    pattern.run()
    wrong, times = pattern.wrong(), []
    for _ in range(batches):
        pattern.start()
        dist.barrier()
        ranks.synchronize()
        begin = time.perf_counter()
        for _ in range(runs):
            pattern.run()
        ranks.synchronize()
        times.append((time.perf_counter() - begin) / runs * 1e6)
        wrong += pattern.wrong()
    return times, wrong
