"""Worlds of several ranks for tests: threads of this process that meet through Python, or processes of `railyard launch`."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading

import railyard

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGEST_S = 60  # ends a hang


def command():
    """The railyard command: of this build, or of the wheel that is installed here."""
    given = os.environ.get("TEST_RAILYARD")
    inside = pathlib.Path(railyard.__file__).parent / "_bin" / "railyard"
    return given or (str(inside) if inside.exists() else shutil.which("railyard"))


class RankGroup:
    """The way of several threads to meet, as World takes it."""

    def __init__(self, size):
        self.parts = [None] * size
        self.barrier = threading.Barrier(size)

    def of(self, rank):
        return _Member(self, rank)


class _Member:
    def __init__(self, group, rank):
        self.group, self.rank, self.size = group, rank, len(group.parts)

    def allgather(self, mine, seconds):
        self.group.barrier.wait(min(seconds, LONGEST_S))
        self.group.parts[self.rank] = mine
        self.group.barrier.wait(min(seconds, LONGEST_S))
        parts = list(self.group.parts)
        self.group.barrier.wait(min(seconds, LONGEST_S))
        return parts

    def barrier(self, seconds):
        self.group.barrier.wait(min(seconds, LONGEST_S))


SETTINGS = {"RAILYARD_INTERFACES": "lo", "RAILYARD_TIMEOUT_MS": "20000"}
ON_RAILS = dict(SETTINGS, RAILYARD_SHARED_MEMORY="off", RAILYARD_RAILS="2")


def in_threads(size, work, settings=SETTINGS):
    """Runs work(world) as `size` ranks in threads of this process; raises the first failure; returns the results."""
    group = RankGroup(size)

    def rank(number):
        with railyard.World(settings, group.of(number)) as world:
            return work(world)

    return side_by_side(size, rank, [group])


def side_by_side(size, work, groups):
    """Runs work(number) in `size` threads that meet in `groups`; raises the first failure; returns the results."""
    results, errors = [None] * size, []

    def rank(number):
        try:
            results[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - told by the caller
            errors.append(error)
            for group in groups:
                group.barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LONGEST_S)
        if one.is_alive():
            raise AssertionError("a rank hangs")
    if errors:
        raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
    return results


def launch(ranks, arguments, environment=None, longest=LONGEST_S):
    """Runs `python ARGUMENTS` as ranks of the launcher; returns the finished process, its output in one text."""
    return subprocess.run([command(), "launch", "-n", str(ranks), "--", sys.executable, *arguments],
                          env=dict(os.environ, RAILYARD_INTERFACES="lo", **(environment or {})), timeout=longest,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@contextlib.contextmanager
def program(text):
    """A file with that program."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(textwrap.dedent(text))
        file.flush()
        yield file.name


def run_program(text, ranks=1, environment=None):
    with program(text) as path:
        return launch(ranks, [path], environment)
