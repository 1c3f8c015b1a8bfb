"""Railyard: data between the processes of a cluster, over every path they have.

    import numpy, railyard
    with railyard.World() as world, railyard.Window.allocate(world, 4096) as window:
        window.put_signal((world.rank + 1) % world.size, 0, numpy.arange(8), signal=0)
        window.wait_signal(0)
        print(window.array("int64", 8))

Started with `railyard launch -n 2 -- python3 program.py`. docs/python.md says the rest.
"""
import atexit as _atexit
import weakref as _weakref

from . import _aio
from ._errors import ClosedError, Error, OutOfRangeError, PeerLostError, TimeoutError  # noqa: A004
from ._railyard import (
    AtomicOp,
    Channel,
    Comparison,
    Completion,
    Context,
    Fetch,
    Listener,
    MemoryUse,
    Order,
    RegisteredMemory,
    Request,
    Settings,
    SignalCondition,
    SignalOp,
    Ticket,
    Window,
    World,
    __version__,
)

__all__ = [
    "AtomicOp", "Channel", "ClosedError", "Comparison", "Completion", "Context", "Error", "Fetch", "Listener", "MemoryUse",
    "Order", "OutOfRangeError", "PeerLostError", "RegisteredMemory", "Request", "Settings", "SignalCondition", "SignalOp",
    "Ticket", "TimeoutError", "Window", "World", "__version__",
]

# ---- The parts that are easier to say in Python ----


def _array(self, dtype="uint8", shape=None, offset=0):
    """This rank's memory (of a window that allocated it) as a NumPy array: `shape` elements from byte `offset` on.

    The array stays valid beyond `close`; nobody else reaches its memory then."""
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError("an array of Python objects is pointers of this process, not data: use a number type")
    memory = self.local
    if not isinstance(memory, memoryview):
        raise TypeError(f"the window lies on GPU {memory.device}, where NumPy cannot reach: use Window.local with CuPy or torch")
    memory = memory[offset:]
    if shape is None:
        return numpy.frombuffer(memory[: len(memory) // dtype.itemsize * dtype.itemsize], dtype)
    return numpy.ndarray(shape, dtype, memory)


async def _wait_signal_async(self, index, value=1, comparison=Comparison.greater_equal, timeout=None, from_rank=-1):
    """`wait_signal` for asyncio: the loop sleeps on the world's descriptor."""
    return await _aio.wait(self, lambda part: self.wait_signal(index, value, comparison, part, from_rank), timeout,
                           _aio.signal_peek(self, index, value, comparison))


async def _wait_counter_async(self, index, value=1, timeout=None):
    """`wait_counter` for asyncio."""
    return await _aio.wait(self, lambda part: self.wait_counter(index, value, part), timeout,
                           _aio.counter_peek(self, index, value))


async def _quiet_async(self, rank=None, timeout=None):
    """`quiet` for asyncio."""
    return await _aio.wait(self, lambda part: self.quiet(rank, part), timeout)


async def _barrier_async(self, timeout=None):
    """`barrier` for asyncio. One task of a window at a time."""
    return await _aio.wait(self, lambda part: self.barrier(part), timeout)


async def _wait_async(self, completion=Completion.remote, timeout=None):
    """`wait` for asyncio; `await ticket` is short for it."""
    if self.window is not None:
        await _aio.wait(self.window, lambda part: self.wait(completion, part), timeout,
                        _aio.ticket_peek(self, completion))


async def _result_async(self, timeout=None):
    """`result` for asyncio."""
    return await _aio.wait(self.window, lambda part: self.result(part), timeout,
                           _aio.ticket_peek(self, Completion.remote))


async def _request_wait_async(self, timeout=None):
    """`wait` for asyncio, in a thread: a channel has no descriptor."""
    return await _aio.in_thread(self.wait, timeout)


async def _accept_async(self, timeout=None):
    """`accept` for asyncio, in a thread."""
    return await _aio.in_thread(self.accept, timeout)


Window.array = _array
Window.wait_signal_async = _wait_signal_async
Window.wait_counter_async = _wait_counter_async
Window.quiet_async = _quiet_async
Window.barrier_async = _barrier_async
Ticket.wait_async = _wait_async
Ticket.__await__ = lambda self: self.wait_async().__await__()
Fetch.result_async = _result_async
Fetch.__await__ = lambda self: self.result_async().__await__()
Request.wait_async = _request_wait_async
Request.__await__ = lambda self: self.wait_async().__await__()
Listener.accept_async = _accept_async

# ---- The end: what is still open when the interpreter ends is taken down before it does ----

_open = _weakref.WeakSet()


def _registering(kind):
    begin = kind.__init__

    def __init__(self, *arguments, **keywords):
        begin(self, *arguments, **keywords)
        _open.add(self)

    __init__.__doc__ = begin.__doc__
    kind.__init__ = __init__


def _split(self, color, key=0):
    part = _split_world(self, color, key)
    if part is not None:
        _open.add(part)
    return part


_registering(World)
_registering(Context)
_split_world = World.split
_split.__doc__ = _split_world.__doc__
World.split = _split


@_atexit.register
def _close_all():
    for one in list(_open):
        one._close_if_idle()
