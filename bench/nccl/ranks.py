"""Two ranks on one GPU that NCCL takes for two hosts, so that everything goes through its net plugin.

Each pair of ranks is forked from this process, which has imported torch once and never touches CUDA itself; NCCL picks
its network per process, so a pair has one transport for its whole life. Nothing outlives a pair: its ranks die with this
process, and are killed when their time is up.
"""
import contextlib
import ctypes
import dataclasses
import datetime
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

PR_SET_PDEATHSIG = 1
GRACE_S = 5  # for the other rank to say why, when one has failed
NO_MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


class PairFailed(Exception):
    """A pair of ranks did not end well. Its text has what the ranks said."""


@dataclasses.dataclass(frozen=True)
class Transport:
    name: str
    environment: dict


@dataclasses.dataclass
class Outcome:
    results: list  # what the work returned, by rank
    logs: list  # what each rank wrote, NCCL's lines among it
    seconds: float


def socket_transport(name="Socket", **settings):
    return Transport(name, {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket", **settings})


def railyard_transport(library, name="Railyard", **settings):
    # NCCL_NET: without it NCCL would fall back to Socket in silence when the plugin cannot start.
    return Transport(name, {"NCCL_NET_PLUGIN": str(pathlib.Path(library).resolve()), "NCCL_NET": "Railyard", **settings})


TCP_RAILS = {"RAILYARD_SHARED_MEMORY": "off", "RAILYARD_INTERFACES": "lo", "RAILYARD_RAILS": "4"}


@contextlib.contextmanager
def mps(wanted=True):
    """NVIDIA's multi-process service for as long as the block runs; gives the environment its clients need."""
    if not wanted:
        yield NO_MPS
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="railyard-mps-"))
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for place in places.values():
        os.mkdir(place)
    environment = {**os.environ, **places}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=30)
    try:
        yield places
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(["nvidia-cuda-mps-control"], env=environment, input=b"quit\n", check=True, timeout=30,
                           stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def device():
    """Where this rank's tensors live."""
    import torch
    return torch.device("cpu" if os.environ.get("BENCH_CPU") else "cuda:0")


def synchronize():
    if device().type == "cuda":
        import torch
        torch.cuda.synchronize()


def meet(name):
    """Returns when the other rank is here too. Without NCCL: `name` must be a new one each time."""
    import torch.distributed as dist
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name} {dist.get_rank()}", "here")
    store.wait([f"{name} {1 - dist.get_rank()}"])


def _join(rank, limit):
    import torch
    import torch.distributed as dist
    if device().type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if device().type == "cuda" else "gloo", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=limit))
    return dist


def _rank(rank, work, arguments, environment, log, answer, limit):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.environ.update(environment, NCCL_HOSTID=f"h{rank}", RANK=str(rank))
    try:
        dist = _join(rank, limit)
        result = work(*arguments)
        synchronize()
        dist.destroy_process_group()
        answer.send(result)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        answer.send(None)
        os._exit(1)


def run_pair(work, transport, arguments=(), limit=120, environment=NO_MPS, debug="WARN", cpu=False):
    """Runs `work(*arguments)` in both ranks, with a process group of the two, and returns what they returned."""
    import torch  # noqa: F401  once, here, instead of in every rank
    import torch.distributed  # noqa: F401
    started = time.monotonic()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NCCL_SOCKET_IFNAME": "lo",
              "NCCL_DEBUG": debug, "GLOO_SOCKET_IFNAME": "lo", "BENCH_CPU": "1" if cpu else "", **environment,
              **transport.environment}
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="railyard-ranks-") as folder:
        logs = [pathlib.Path(folder, f"rank{rank}") for rank in range(2)]
        pipes = [fork.Pipe(duplex=False) for _ in range(2)]
        ranks = [fork.Process(target=_rank, args=(rank, work, arguments, shared, logs[rank], pipes[rank][1], limit))
                 for rank in range(2)]
        try:
            for rank in ranks:
                rank.start()
            results, failure = _wait(ranks, [pipe[0] for pipe in pipes], started + limit)
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
                if rank.pid:
                    rank.join()
            for pipe in pipes:
                pipe[0].close()
                pipe[1].close()
        texts = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
    if failure:
        said = "\n".join(f"-- rank {rank} said last:\n{text[-3000:]}" for rank, text in enumerate(texts))
        raise PairFailed(f"{transport.name}: {failure}\n{said}")
    return Outcome(results, texts, time.monotonic() - started)


def _wait(ranks, pipes, until):
    """Returns (results, None), or (None, what went wrong)."""
    results, ended, failure = [None, None], set(), None
    while len(ended) < 2:
        ready = multiprocessing.connection.wait(
            [rank.sentinel for number, rank in enumerate(ranks) if number not in ended] +
            [pipe for pipe in pipes if not pipe.closed], max(until - time.monotonic(), 0))
        if not ready:
            return None, failure or "time is up"
        for number, (rank, pipe) in enumerate(zip(ranks, pipes)):
            if pipe in ready:
                results[number] = pipe.recv()
                pipe.close()
            elif rank.sentinel in ready:
                ended.add(number)
                rank.join()
                if rank.exitcode != 0 and not failure:
                    failure = f"rank {number} ended with {rank.exitcode}"
                    until = min(until, time.monotonic() + GRACE_S)
    return (None, failure) if failure else (results, None)


def add_arguments(parser, limit):
    """The options that all programs here have."""
    parser.add_argument("--library", default="build/lib/libnccl-net-railyard.so", help="Railyard's plugin (%(default)s)")
    parser.add_argument("--socket", action="store_true", help="NCCL's own Socket transport instead of Railyard")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
                        help="in the environment of the ranks, beside what the program sets there (repeatable)")
    parser.add_argument("--no-mps", action="store_true", help="let the ranks take turns on the GPU: slow")
    parser.add_argument("--limit", type=float, default=limit, metavar="S", help="for one pair of ranks (%(default)s)")
    parser.add_argument("--debug", default="WARN", help="NCCL_DEBUG of the ranks (%(default)s)")
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU: tries the program out, not the transport")
    parser.add_argument("--json", metavar="FILE", help="write everything there")


def parse(parser):
    # So that `timeout` and the like end the ranks and the service too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = parser.parse_args()
    for setting in args.settings:
        if "=" not in setting:
            parser.error(f"--set {setting}: NAME=VALUE is wanted")
    args.settings = dict(setting.split("=", 1) for setting in args.settings)
    if not (args.cpu or args.socket or pathlib.Path(args.library).exists()):
        parser.error(f"no plugin at {args.library}: --library FILE says where it is, --socket does without")
    return args


def chosen(args, **settings):
    """The transport that the options ask for, with these settings of Railyard's."""
    if args.socket or args.cpu:
        return socket_transport(**args.settings)
    return railyard_transport(args.library, **{**settings, **args.settings})


def run_with(args, environment, work, transport, arguments=()):
    return run_pair(work, transport, arguments, args.limit, environment, args.debug, args.cpu)


def service(args):
    return mps(not (args.no_mps or args.cpu))
