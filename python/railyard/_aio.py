"""Waits for asyncio. A loop sleeps on the world's descriptor; nothing here knows how bytes move.

One Watch for each world and loop: while somebody waits it keeps the descriptor in the loop, armed, and looks at what is
waited for whenever the descriptor says that something happened.
"""
import asyncio
import math
import operator
import weakref

from . import _errors

# A wait this old asks the library whether the peer is still there, which only a blocking wait does: in a thread.
_ASK_AFTER_S = 1.0
_ASK_FOR_S = 1.3
_ASK_EVERY_S = 5.0

# Of a wait that cannot be looked at without disturbing the sleep: it looks again so often, whatever the descriptor says.
_LOOK_EVERY_S = 0.01

_COMPARE = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}

_watches = weakref.WeakKeyDictionary()  # world -> {loop: Watch}


def _watch(world):
    loop = asyncio.get_running_loop()
    loops = _watches.setdefault(world, {})
    for other in [one for one in loops if one.is_closed()]:
        del loops[other]
    if loop not in loops:
        loops[loop] = _Watch(world, loop)
    return loops[loop]


class _Watch:
    def __init__(self, world, loop):
        self._world = weakref.ref(world)
        self._loop = loop
        self._descriptor = world.descriptor()
        # future -> (look, peek). look: returns (True, value) or (False, None), or raises; makes progress. peek: whether
        # there is something to see; does not disturb the sleep. None: there is no such way.
        self._waits = {}
        self._reading = False
        self._timer = None

    async def until(self, look, peek, ask, timeout):
        """The value of `look` once it has one. `ask` blocks for about a second in a thread: see _ASK_AFTER_S."""
        done, value = look()
        if done:
            return value
        future = self._loop.create_future()
        self._waits[future] = look, peek
        asking = self._loop.create_task(self._ask(ask)) if ask else None
        try:
            self._pump()
            return await asyncio.wait_for(future, None if timeout == math.inf else timeout)
        except asyncio.TimeoutError:
            done, value = look()
            if done:
                return value
            raise
        finally:
            if asking:
                asking.cancel()
            self._waits.pop(future, None)
            if not self._waits:
                self._sleep(False)

    async def _ask(self, ask):
        await asyncio.sleep(_ASK_AFTER_S)
        while True:
            try:
                await self._loop.run_in_executor(None, ask, _ASK_FOR_S)
            except _errors.Error:
                pass  # the wait itself sees what it is
            self._pump()
            await asyncio.sleep(_ASK_EVERY_S)

    def _sleep(self, wanted):
        if self._timer and not wanted:
            self._timer.cancel()
            self._timer = None
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._loop.add_reader(self._descriptor, self._pump)
        else:
            self._loop.remove_reader(self._descriptor)

    def _look(self):
        for future, (look, _) in list(self._waits.items()):
            if future.done():
                self._waits.pop(future, None)
                continue
            try:
                done, value = look()
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                self._waits.pop(future, None)
                future.set_exception(error)
                continue
            if done:
                self._waits.pop(future, None)
                future.set_result(value)

    def _peek(self):
        """Whether something came between the look and the arming: it makes no descriptor readable."""
        blind = False
        for future, (_, peek) in self._waits.items():
            if future.done() or (peek and peek()):
                return True
            blind = blind or peek is None
        if blind and not self._timer:
            self._timer = self._loop.call_later(_LOOK_EVERY_S, self._again)
        return False

    def _again(self):
        self._timer = None
        self._pump()

    def _pump(self):
        world = self._world()
        if world is None or world.closed:
            error = _errors.ClosedError("closed", "the world was closed during the wait")
            for future in list(self._waits):
                if not future.done():
                    future.set_exception(error)
            self._waits.clear()
            self._sleep(False)
            return
        world.progress()
        self._look()
        if not self._waits:
            self._sleep(False)
        elif world.arm() and not self._peek():
            self._sleep(True)
        else:
            # There is more to do: after others in this loop have had their turn.
            self._sleep(False)
            self._loop.call_soon(self._pump)


def _limit(world, timeout):
    if timeout is not None:
        return timeout
    return next(int(one["value"]) for one in world.settings.list() if one["name"] == "RAILYARD_TIMEOUT_MS") / 1000


def signal_peek(window, index, value, comparison):
    compare = _COMPARE[comparison.name]
    return lambda: window.closed or compare(window.read_signal(index), value)


def counter_peek(window, index, value):
    return lambda: window.closed or window.read_counter(index) >= value


def ticket_peek(ticket, completion):
    def peek():
        try:
            return ticket.peek(completion)
        except _errors.Error:
            return True

    return peek


async def wait(window, call, timeout, peek=None):
    """Waits in asyncio for what `call(timeout)` waits for in a thread."""

    def look():
        try:
            return True, call(0)
        except _errors.TimeoutError:
            return False, None

    limit = _limit(window.world, timeout)
    try:
        return await _watch(window.world).until(look, peek, call, limit)
    except asyncio.TimeoutError:
        try:
            return call(0)
        except _errors.TimeoutError as error:  # with the library's words
            raise _errors.TimeoutError(error.status, f"{error.message} (the end of {limit} s)", error.peer, error.rail,
                                       error.operation, error.sequence) from None


async def in_thread(call, timeout):
    """For what has no descriptor: a blocking wait in a thread, in parts so that a cancelled task leaves soon."""
    loop = asyncio.get_running_loop()
    until = None if timeout is None or timeout == math.inf else loop.time() + timeout
    while True:
        part = 0.5 if until is None else max(0, min(0.5, until - loop.time()))
        try:
            return await loop.run_in_executor(None, call, part)
        except _errors.TimeoutError:
            if until is not None and loop.time() >= until:
                raise
