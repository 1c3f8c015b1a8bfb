"""The programs that are compared: how each is started on two processors, and what it says.

A candidate knows its tests, and what it lacks (missing()). One that makes a sample at a time has measure(); one that makes
all of them at once, and takes the cache line itself before and after each, has measure_all(), and maybe several names.
"""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time

LATENCY, BANDWIDTH = "us", "MB/s"
UNITS = {
    "latency": LATENCY, "bandwidth": BANDWIDTH, "window2000": BANDWIDTH, "write": BANDWIDTH, "read": BANDWIDTH,
    "pair_latency": LATENCY, "pair_bandwidth": BANDWIDTH, "put_latency": LATENCY, "put_bandwidth": BANDWIDTH,
}
READY_S = 0.03


class Failed(Exception):
    """A program that was started and did not deliver a figure."""


class Machine:
    """Where the two processes run. Both are pinned; real-time priority keeps their processors for them on a busy machine."""

    def __init__(self, cpus, priority, patience):
        self.cpus, self.priority, self.patience = cpus, priority, patience
        if priority:
            # Two processes that spin at real-time priority leave no processor to the one that is to stop them.
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority + 1))

    def start(self, command, environment, side, out):
        def settle():
            # Kept by the system itself, should two that spin keep us from running.
            resource.setrlimit(resource.RLIMIT_CPU, (self.patience, self.patience))
            if self.priority:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(self.priority))
            if side is not None:
                os.sched_setaffinity(0, {self.cpus[side]})

        return subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT, preexec_fn=settle, start_new_session=True)

    @staticmethod
    def finish(process, until):
        try:
            return process.wait(max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "out of time"

    @staticmethod
    def said(out):
        out.seek(0)
        return out.read()

    def run(self, command):
        """One program that makes its own second process and pins both."""
        with tempfile.TemporaryFile("w+") as out:
            ended = self.finish(self.start(command, {}, None, out), time.monotonic() + self.patience)
            text = self.said(out)
        if ended != 0:
            raise Failed(f"{command[0]} ended with {ended}: {text[-300:]}")
        return text

    def run_pair(self, server, client, environment, ready):
        """A server, and a client once ready() says so. Returns what the client said."""
        with tempfile.TemporaryFile("w+") as server_out, tempfile.TemporaryFile("w+") as client_out:
            until = time.monotonic() + self.patience
            first = self.start(server, environment, 0, server_out)
            while not ready() and first.poll() is None and time.monotonic() < until:
                time.sleep(0.002)
            # Some have a name before they can be talked to.
            time.sleep(READY_S)
            second = self.start(client, environment, 1, client_out)
            ended = self.finish(second, until)
            # A server whose client is gone has nothing to wait for.
            server_ended = self.finish(first, until if ended == 0 else time.monotonic() + 0.2)
            text, server_text = self.said(client_out), self.said(server_out)
        if ended != 0 or server_ended != 0:
            raise Failed(f"{client[0]}: client {ended}, server {server_ended}: {text[-200:]} {server_text[-200:]}")
        return text


def count(size, small, middle, large):
    """Iterations: a sample is to be shorter than the time for which the cores stay where they are."""
    return str(small if size <= 8192 else middle if size < 262144 else large)


class Fabtests:
    """One provider, driven by the fabtests programs of one libfabric version."""

    at_once = False

    PROGRAMS = {
        "latency": ("fi_rdm_tagged_pingpong", (), (5000, 1000, 200)),
        "bandwidth": ("fi_rdm_tagged_bw", (), (50000, 5000, 500)),
        "window2000": ("fi_rdm_tagged_bw", ("-W", "2000"), (50000, 6000, 4000)),
        "write": ("fi_rma_bw", ("-o", "write"), (20000, 5000, 500)),
        "read": ("fi_rma_bw", ("-o", "read"), (20000, 5000, 500)),
    }

    def __init__(self, version, provider, prefix, libfabric, provider_path):
        self.name, self.provider, self.prefix = f"{provider} ({version})", provider, pathlib.Path(prefix)
        self.tests = tuple(self.PROGRAMS)
        self.environment = {"FI_PROVIDER_PATH": str(provider_path)}
        if libfabric:
            self.environment["LD_LIBRARY_PATH"] = f"{libfabric}/lib"

    def missing(self):
        paths = [self.prefix / "bin" / program for program, _, _ in self.PROGRAMS.values()]
        return [str(path) for path in dict.fromkeys(paths) if not os.access(path, os.X_OK)]

    def measure(self, machine, test, size):
        program, options, iterations = self.PROGRAMS[test]
        port = str(random.randrange(20000, 32000))
        common = [str(self.prefix / "bin" / program), "-p", self.provider, "-S", str(size), "-I", count(size, *iterations),
                  *options]
        # Both providers keep their endpoints under a name that ends in the port.
        text = machine.run_pair([*common, "-s", "127.0.0.1", "-B", port], [*common, "-P", port, "127.0.0.1"],
                                self.environment, lambda: any(name.endswith(port) for name in os.listdir("/dev/shm")))
        for line in text.splitlines():
            fields = line.split()
            if len(fields) >= 7 and fields[0][0].isdigit():
                rate = float(fields[4])
                # The rate has more digits than the time beside it; bytes / (MB/s) are microseconds.
                return size / rate if UNITS[test] == LATENCY else rate
        raise Failed(f"{program} printed no figure: {text[-300:]}")


def listens(port):
    """Whether somebody on this machine accepts connections to that port (state 0A of the system's table)."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in map(str.split, table))


class Ucx:
    """ucx_perftest over some of UCX's transports. Its targets wait for the last byte of a put, and read no other."""

    at_once = False

    PROGRAMS = {
        "pair_latency": ("tag_lat", (5000, 1000, 200)),
        "pair_bandwidth": ("tag_bw", (50000, 5000, 500)),
        "put_latency": ("ucp_put_lat", (5000, 1000, 200)),
        "put_bandwidth": ("ucp_put_bw", (50000, 5000, 500)),
    }

    def __init__(self, transports):
        self.name, self.environment = f"UCX {transports}", {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        self.tests = tuple(self.PROGRAMS)

    def missing(self):
        return [] if shutil.which("ucx_perftest") else ["ucx_perftest"]

    def measure(self, machine, test, size):
        program, iterations = self.PROGRAMS[test]
        port = random.randrange(20000, 32000)
        number = count(size, *iterations)
        common = ["ucx_perftest", "-t", program, "-s", str(size), "-n", number, "-w", str(int(number) // 10),
                  "-p", str(port)]
        text = machine.run_pair(common, [*common, "-f", "-v", "127.0.0.1"], self.environment, lambda: listens(port))
        fields = [field.strip() for field in text.strip().splitlines()[-1].split(",")] if text.strip() else []
        if len(fields) < 8 or not fields[0].isdigit():
            raise Failed(f"ucx_perftest printed no figure: {text[-300:]}")
        # Its megabytes are of 1024 * 1024.
        return float(fields[3]) if UNITS[test] == LATENCY else float(fields[5]) * 1.048576


DEBIAN_MPI = (
    "Open MPI vader=mpicc.openmpi,mpirun.openmpi,--allow-run-as-root,--bind-to,none,--mca,pml,ob1,--mca,btl,vader;self",
    "MPICH=mpicc.mpich,mpirun.mpich",
)


class Mpi:
    """mpi_pair.c with somebody's compiler wrapper and launcher."""

    at_once = True

    TESTS = {"latency": "pair_latency", "bandwidth": "pair_bandwidth"}

    def __init__(self, name, compiler, launcher, options):
        self.name, self.compiler, self.launcher = name, compiler, launcher
        # Commas part the options from each other; a semicolon is a comma inside one.
        self.options = [option.replace(";", ",") for option in options]
        self.tests, self.names = tuple(self.TESTS.values()), (name,)
        self.folder = tempfile.TemporaryDirectory()
        self.program = f"{self.folder.name}/mpi_pair"

    def missing(self):
        lacking = [one for one in (self.compiler, self.launcher) if not shutil.which(one)]
        if lacking:
            return lacking
        source = pathlib.Path(__file__).with_name("mpi_pair.c")
        built = subprocess.run([self.compiler, "-O2", "-o", self.program, source], capture_output=True, text=True,
                               check=False)
        return [] if built.returncode == 0 else [f"{self.compiler} failed: {built.stderr[-300:]}"]

    def measure_all(self, machine, sizes):
        text = machine.run([self.launcher, *self.options, "-n", "2", self.program, *map(str, machine.cpus),
                            str(machine.priority), *map(str, sizes)])
        for line in text.splitlines():
            what, size, *values = line.split()
            yield (self.TESTS[what], self.name, int(size), *map(float, values))


class Local:
    """bench/local: a bare copy through shared memory, and our own windows beside it."""

    at_once = True

    TESTS = {"latency": "pair_latency", "pipeline": "pair_bandwidth", "unread": "put_latency", "puts": "put_bandwidth"}
    NAMES = {"floor": "floor", "railyard": "railyard window"}

    def __init__(self, build):
        self.name, self.program = "bench/local", str(pathlib.Path(build) / "bench" / "local")
        self.tests, self.names = tuple(self.TESTS.values()), tuple(self.NAMES.values())

    def missing(self):
        return [] if os.access(self.program, os.X_OK) else [self.program]

    def measure_all(self, machine, sizes):
        text = machine.run([self.program, "--cpus", ",".join(map(str, machine.cpus)), "--priority", str(machine.priority),
                            "--repeats", "1", "--sizes", ",".join(map(str, sizes)), "--json"])
        for sample in json.loads(text)["samples"]:
            if sample["what"] in self.TESTS:
                test, size, ns = self.TESTS[sample["what"]], sample["bytes"], sample["ns"]
                value = ns / 1000 if UNITS[test] == LATENCY else size * 1000 / ns
                yield test, self.NAMES[sample["who"]], size, value, sample["line_before"], sample["line_after"]
