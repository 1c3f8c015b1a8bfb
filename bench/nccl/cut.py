#!/usr/bin/env python3
"""Cuts a rail of this process, or of another: shuts down the TCP connections of one listener, again and again.

A rail's connections have one thing in common: at one end or the other, the rail's listening port. NCCL and torch have
listeners too, so the one whose connections carried most is taken: the busiest is a rail.

  cut.py PID [SECONDS]         that process's (as its owner or root), for so long (2)
  cut.py PID --slow MB_PER_S   slows its sending there down instead, for good
"""
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
import termios
import time

AGAIN_S = 0.02  # between two looks for connections that came back
TCP_INFO_BYTES = 192
BYTES_ACKED_AT = 120  # in struct tcp_info: bytes acknowledged, then bytes received
PIDFD_GETFD = 438
SO_MAX_PACING_RATE = 47


def duplicate(process, number):
    """Descriptor `number` of that process (a pidfd), or of this one (None)."""
    if process is None:
        return os.dup(number)
    copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, number, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), f"pidfd_getfd of descriptor {number}")
    return copy


def sockets(pid=None):
    """Every TCP socket of a process, as duplicates that must be closed."""
    folder = f"/proc/{pid or 'self'}/fd"
    process = None if pid is None else os.pidfd_open(pid)
    try:
        yield from tcp_sockets(folder, process)
    finally:
        if process is not None:
            os.close(process)


def tcp_sockets(folder, process):
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not os.readlink(f"{folder}/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=duplicate(process, int(name)))
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield found
            else:
                found.close()


def is_listener(found):
    return found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def carried(found):
    """Bytes that went through, both ways."""
    information = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    return sum(struct.unpack_from("QQ", information, BYTES_ACKED_AT))


def under_way(found):
    """Bytes that were handed to the kernel and not acknowledged yet."""
    answer = fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return struct.unpack("i", answer)[0]


def connections(pid=None):
    """{port of the listener at either end: its connections}; the caller closes them."""
    listening, connected = set(), []
    for found in sockets(pid):
        with found if is_listener(found) else contextlib.nullcontext():
            if is_listener(found):
                listening.add(found.getsockname()[1])
            else:
                connected.append(found)
    groups = {}
    for found in connected:
        try:
            own, peer = found.getsockname()[1], found.getpeername()[1]
        except OSError:
            found.close()  # not connected, or no longer
            continue
        groups.setdefault(own if own in listening else peer, []).append(found)
    return groups


def close_all(groups):
    for group in groups.values():
        for found in group:
            found.close()


class Rail:
    """The busiest rail of a process: of this one, if none is named."""

    def __init__(self, pid=None):
        self.pid = pid
        groups = connections(pid)
        if not groups:
            raise RuntimeError("the process has no TCP connection at all: is RAILYARD_SHARED_MEMORY off?")
        self.carried = {port: sum(map(carried, group)) for port, group in groups.items()}
        self.port = max(self.carried, key=self.carried.get)
        self.victims = groups.pop(self.port)
        close_all(groups)
        self.cuts, self.under_way = 0, 0
        self.stop = threading.Event()
        self.keeper = threading.Thread(target=self.keep_dead, daemon=True)

    def cut(self):
        """Now; and whatever comes back, until `release`."""
        self.under_way = sum(map(under_way, self.victims))
        self.shut(self.victims)
        self.keeper.start()

    def slow(self, bytes_per_s):
        """Whatever is sent by those connections from now on."""
        for victim in self.victims:
            with victim:
                victim.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("I", bytes_per_s))

    def shut(self, victims):
        for victim in victims:
            with victim, contextlib.suppress(OSError):
                victim.shutdown(socket.SHUT_RDWR)
                self.cuts += 1

    def keep_dead(self):
        while not self.stop.wait(AGAIN_S):
            groups = connections(self.pid)
            self.shut(groups.pop(self.port, []))
            close_all(groups)

    def release(self):
        self.stop.set()
        self.keeper.join()

    def report(self):
        return {"port": self.port, "connections_cut": self.cuts, "bytes_under_way": self.under_way,
                "carried_by_listener": self.carried}


def main():
    words = sys.argv[1:]
    if not words or not words[0].isdigit() or len(words) > 3:
        print(__doc__, file=sys.stderr)
        return 64
    rail = Rail(int(words[0]))
    if words[1:2] == ["--slow"]:
        rail.slow(int(float(words[2]) * 1e6))
        print(f"slow: {len(rail.victims)} connections of the rail at port {rail.port}: {words[2]} MB/s")
        return 0
    rail.cut()
    time.sleep(float(words[1]) if len(words) > 1 else 2.0)
    rail.release()
    print(f"cut: {rail.cuts} connections of the rail at port {rail.port}")
    return 0 if rail.cuts > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
