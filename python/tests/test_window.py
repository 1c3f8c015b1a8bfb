"""Windows: operations, waits, and what a wrong call says."""
import gc
import sys
import threading
import unittest
import weakref

import numpy
import railyard
from railyard import AtomicOp, Comparison, Completion, Order, SignalCondition, SignalOp, Window
from support import ON_RAILS, ROOT, SETTINGS, RankGroup, in_threads, run_program, side_by_side


def alone(work, size=4096, settings=SETTINGS, **options):
    with railyard.World(dict(settings, RAILYARD_BOOTSTRAP="single")) as world:
        with Window.allocate(world, size, **options) as window:
            return work(window)


class Operations(unittest.TestCase):
    def pair(self, work, settings, size=1 << 20):
        def rank(world):
            with Window.allocate(world, size) as window:
                work(world.rank, window)
                window.barrier()

        in_threads(2, rank, settings)

    def both_ways(self, work, size=1 << 20):
        for name, settings in (("shared memory", SETTINGS), ("rails", ON_RAILS)):
            with self.subTest(name):
                self.pair(work, settings, size)

    def test_a_signal_says_that_the_bytes_are_there(self):
        def work(rank, window):
            for size in (1, 8, 1000, 100_000):
                source = numpy.full(size, 17 + rank, "uint8")
                window.put_signal(1 - rank, 4096, source, signal=3)
                window.wait_signal(3, from_rank=1 - rank)
                self.assertTrue((window.array("uint8", size, 4096) == 18 - rank).all())
                window.barrier()
                window.reset_signal(3)
                window.barrier()

        self.both_ways(work)

    def test_gets_and_values(self):
        def work(rank, window):
            window.put_value(1 - rank, 0, -5)
            window.put_value(1 - rank, 8, 2.5)
            window.put_value(1 - rank, 16, 200, bytes=1)
            window.put_value(1 - rank, 20, 1.5, bytes=4)
            window.array("float64", 1000, 8192)[:] = numpy.arange(1000) + rank
            window.barrier()
            self.assertEqual(window.array("int64", 1)[0], -5)
            self.assertEqual(window.array("float64", 1, 8)[0], 2.5)
            self.assertEqual(window.array("uint8", 1, 16)[0], 200)
            self.assertEqual(window.array("float32", 1, 20)[0], 1.5)
            there = numpy.zeros(1000)
            ticket = window.get(1 - rank, 8192, there)
            ticket.wait(timeout=10)
            self.assertTrue(ticket.test())
            self.assertTrue((there == numpy.arange(1000) + 1 - rank).all())

        self.both_ways(work)

    def test_atomics(self):
        def work(rank, window):
            for _ in range(50):
                window.atomic(0, 0, AtomicOp.add, 2)
                window.atomic(0, 8, AtomicOp.increment, width=4)
            seen = [window.fetch_atomic(0, 16, AtomicOp.add, 1) for _ in range(20)]
            self.assertEqual(seen, sorted(seen))
            window.barrier()
            self.assertEqual(window.fetch_atomic(0, 0, AtomicOp.fetch), 200)
            self.assertEqual(window.fetch_atomic(0, 8, AtomicOp.fetch, width=4), 100)
            self.assertEqual(window.fetch_atomic(0, 16, AtomicOp.fetch), 40)
            window.barrier()
            if rank == 0:
                fetch = window.start_fetch_atomic(1, 24, AtomicOp.swap, -7, signed=True)
                self.assertEqual(fetch.result(timeout=10), 0)
                self.assertEqual(window.fetch_atomic(1, 24, AtomicOp.compare_swap, 9, -7, signed=True), -7)
                self.assertEqual(window.fetch_atomic(1, 24, AtomicOp.fetch), 9)

        self.both_ways(work)

    def test_counters_signals_and_conditions(self):
        def work(rank, window):
            source = numpy.ones(100)
            window.put_counter(1 - rank, 0, source, counter=1)
            self.assertEqual(window.wait_counter(1), 1)
            window.put_signal_counter(1 - rank, 0, source, signal=4, counter=1)
            self.assertEqual(window.wait_counter(1, 2), 2)
            window.reset_counter(1)
            self.assertEqual(window.read_counter(1), 0)
            window.signal(1 - rank, 5, 10, SignalOp.set)
            which, held = window.wait_any_signal([SignalCondition(6), SignalCondition(5, 10, Comparison.equal)])
            self.assertEqual((which, held), (1, 10))
            window.wait_all_signals([SignalCondition(4, from_rank=1 - rank), SignalCondition(5, 9, Comparison.greater)])
            window.put(1 - rank, 0, source, Order.relaxed)
            window.fence()
            window.fence(1 - rank)
            window.quiet(1 - rank)
            window.quiet()

        self.both_ways(work)

    def test_statistics_are_dicts(self):
        def work(world):
            with Window.allocate(world, 1 << 20) as window:
                window.put(1 - world.rank, 0, numpy.zeros(1 << 20, "uint8"))
                window.barrier()
                found = world.statistics()
                self.assertEqual(len(found["rails"]), world.rail_count)
                self.assertGreater(sum(rail["bytes_sent"] for rail in found["rails"]), 1 << 20)
                self.assertGreater(found["operations_completed"], 0)

        in_threads(2, work, ON_RAILS)

    def test_sources_live_until_they_are_sent_though_nobody_holds_them(self):
        def work(rank, window):
            sources = []
            for i in range(200):
                source = numpy.full(4096, i, "uint8")
                sources.append(weakref.ref(source))
                window.put(1 - rank, i * 4096, source)  # no ticket is kept, and no source
                del source
            window.quiet()
            self.assertEqual(window._pending, 0)
            gc.collect()
            self.assertEqual([one() for one in sources], [None] * 200)
            window.barrier()
            for i in range(200):
                self.assertTrue((window.array("uint8", 4096, i * 4096) == i).all())

        self.both_ways(work)

    def test_completion_lets_the_source_go(self):
        def work(rank, window):
            source = numpy.ones(1 << 19)
            alive = weakref.ref(source)
            window.world.remember(source)
            ticket = window.put(1 - rank, 0, source[: 1 << 17])
            del source
            ticket.wait(Completion.remote)
            self.assertIsNone(alive())
            self.assertIn(ticket.window, (window, None))

        self.both_ways(work)


class Adopted(unittest.TestCase):
    def test_over_an_array(self):
        def rank(world):
            array = numpy.zeros(1000)
            with Window.adopt(world, array) as window:
                window.put(1 - world.rank, 80, numpy.full(10, 3.0 + world.rank))
                window.barrier()
                self.assertTrue((array[10:20] == 4 - world.rank).all())
                with self.assertRaisesRegex(TypeError, "memory of yours"):
                    window.local
            return True

        in_threads(2, rank)
        in_threads(2, rank, ON_RAILS)

    def test_the_window_keeps_its_array(self):
        with railyard.World({"RAILYARD_BOOTSTRAP": "single"}) as world:
            array = numpy.zeros(100)
            alive = weakref.ref(array)
            window = Window.adopt(world, array)
            del array
            gc.collect()
            self.assertIsNotNone(alive())
            window.put_value(0, 0, 1.5)
            self.assertEqual(alive()[0], 1.5)
            with self.assertRaises(ValueError):
                alive().resize(1000)
            window.close()
            gc.collect()
            self.assertIsNone(alive())

    def test_by_dlpack_and_by_the_cuda_array_interface(self):
        class ByDlpack:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, stream=None):
                return self.array.__dlpack__()

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        class ByInterface:
            def __init__(self, array, strides=None, readonly=False):
                self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3,
                                                 "data": (array.ctypes.data, readonly), "strides": strides}
                self.array = array

        for kind in (ByDlpack, ByInterface):
            with self.subTest(kind.__name__), railyard.World({"RAILYARD_BOOTSTRAP": "single"}) as world:
                array = numpy.zeros((10, 10))
                count = sys.getrefcount(array)
                with Window.adopt(world, kind(array)) as window:
                    window.put(0, 8, kind(numpy.arange(5.0)))
                    self.assertEqual(list(array.ravel()[1:6]), [0, 1, 2, 3, 4])
                    to = numpy.zeros(3)
                    window.get(0, 16, kind(to)).wait()
                    self.assertEqual(list(to), [1, 2, 3])
                    with self.assertRaisesRegex(BufferError, "contiguous"):
                        window.put(0, 0, ByDlpack(array[:, 2]))
                    with self.assertRaisesRegex(BufferError, "contiguous"):
                        window.put(0, 0, ByInterface(array[:, 2], array[:, 2].strides))
                    with self.assertRaisesRegex(BufferError, "read-only"):
                        window.get(0, 0, ByInterface(array, None, True))
                gc.collect()
                self.assertEqual(sys.getrefcount(array), count)


class OnAGpu(unittest.TestCase):
    DOUBLE = ROOT / "build" / "tests" / "doubles" / "cuda" / "libcuda.so.1"

    @unittest.skipUnless(DOUBLE.exists(), "the driver's double is not built")
    def test_allocated_there(self):
        # In a process of its own: the driver is loaded before the library looks for it.
        program = '''
            import ctypes, os
            driver = ctypes.CDLL(os.environ["DRIVER"], ctypes.RTLD_GLOBAL)
            import numpy, railyard
            with railyard.World() as world:
                with railyard.Window.allocate(world, 1 << 16, device=0) as window:
                    window.put(0, 100, numpy.arange(50.0)).wait()
                    window.put_signal(0, 0, b"12345678", 3)
                    window.wait_signal(3)
                    back = numpy.zeros(50)
                    window.get(0, 100, back).wait()
                    assert (back == numpy.arange(50.0)).all()
                    there = window.local.__cuda_array_interface__
                    assert there["shape"] == (1 << 16,) and there["typestr"] == "|u1" and there["version"] == 3
                    address, read_only = there["data"]
                    seen = ctypes.create_string_buffer(8)
                    assert driver.cuda_double_peek(seen, ctypes.c_void_p(address), 8) and seen.raw == b"12345678"
                    assert not read_only and window.local.device == 0
                    try:
                        window.array("float64")
                        raise SystemExit("NumPy cannot reach it")
                    except TypeError as error:
                        assert "GPU 0" in str(error)
            print("right")
        '''
        done = run_program(program, environment={"DRIVER": str(self.DOUBLE)})
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "right"))


class WrongCalls(unittest.TestCase):
    def refused(self, kind, words, call):
        def work(window):
            with self.assertRaisesRegex(kind, words) as caught:
                call(window)
            return caught.exception

        return alone(work)

    def test_arrays_of_objects(self):
        self.refused(TypeError, "Python objects", lambda w: w.put(0, 0, numpy.array([1, "a"], dtype=object)))
        mixed = numpy.zeros(2, dtype=[("Offset", "i4"), ("thing", "O")])
        self.refused(TypeError, "Python objects", lambda w: w.put(0, 0, mixed))
        named = numpy.zeros(2, dtype=[("Offset", "i4"), ("O", "f8")])
        alone(lambda w: w.put(0, 0, named))
        self.refused(TypeError, "no memory", lambda w: w.put(0, 0, 5))
        self.refused(TypeError, "no memory", lambda w: w.put(0, 0, "text"))
        self.refused(TypeError, "Python objects", lambda w: w.array(object))

    def test_gaps(self):
        self.refused(BufferError, "contiguous", lambda w: w.put(0, 0, numpy.zeros((4, 4))[:, 1]))
        self.refused(BufferError, "contiguous", lambda w: w.get(0, 0, numpy.zeros((4, 4)).T[1]))
        alone(lambda w: w.put(0, 0, numpy.zeros((4, 4))[1]))

    def test_read_only_destinations(self):
        fixed = numpy.zeros(8)
        fixed.flags.writeable = False
        self.refused(BufferError, "read-only", lambda w: w.get(0, 0, fixed))
        self.refused(BufferError, "read-only", lambda w: w.get(0, 0, bytes(8)))
        self.refused(BufferError, "read-only", lambda w: Window.adopt(w.world, bytes(8)))
        alone(lambda w: w.put(0, 0, fixed))

    def test_out_of_range(self):
        for call in (lambda w: w.put(0, 4090, bytes(8)), lambda w: w.put(0, -1, bytes(8)), lambda w: w.put(0, 1 << 62, b"a"),
                     lambda w: w.get(0, 4096, bytearray(1)), lambda w: w.put(1, 0, b"a"), lambda w: w.put(-1, 0, b"a"),
                     lambda w: w.put_signal(0, 0, b"a", 64), lambda w: w.wait_signal(64, timeout=0),
                     lambda w: w.read_signal(64), lambda w: w.read_counter(64), lambda w: w.reset_signal(64),
                     lambda w: w.put_counter(0, 0, b"a", 64), lambda w: w.atomic(0, 4096, AtomicOp.add, 1)):
            self.refused(railyard.OutOfRangeError, "", call)
        error = self.refused(IndexError, "put", lambda w: w.put(0, 4090, bytes(8)))
        self.assertEqual((error.status, error.peer, error.operation), ("out_of_range", 0, "put"))

    def test_words_that_do_not_fit(self):
        self.refused(OverflowError, "fit", lambda w: w.atomic(0, 0, AtomicOp.add, 1 << 64))
        self.refused(OverflowError, "fit", lambda w: w.atomic(0, 0, AtomicOp.add, 1 << 32, width=4))
        self.refused(OverflowError, "fit", lambda w: w.put_value(0, 0, 256, bytes=1))
        self.refused(OverflowError, "fit", lambda w: w.put_value(0, 0, -129, bytes=1))
        self.refused(ValueError, "bytes", lambda w: w.atomic(0, 0, AtomicOp.add, 1, width=2))
        self.refused(ValueError, "bytes", lambda w: w.put_value(0, 0, 1.5, bytes=2))
        self.refused(TypeError, "", lambda w: w.put_value(0, 0, "1"))
        alone(lambda w: w.put_value(0, 0, -128, bytes=1))
        alone(lambda w: w.atomic(0, 0, AtomicOp.add, numpy.int64(-3)))

    def test_timeouts(self):
        error = self.refused(railyard.TimeoutError, "signal 0 holds 0", lambda w: w.wait_signal(0, timeout=0.01))
        self.assertIsInstance(error, TimeoutError)
        self.assertEqual(error.operation, "wait_signal")
        self.refused(ValueError, "timeout", lambda w: w.wait_signal(0, timeout=-1))
        self.refused(ValueError, "timeout", lambda w: w.wait_signal(0, timeout=float("nan")))

    def test_settings_and_bootstraps(self):
        with self.assertRaisesRegex(railyard.Error, "RAILYARD_RAILS"):
            railyard.World({"RAILYARD_RAILS": "many"})
        with self.assertRaises(railyard.Error):
            railyard.Settings().set("RAILYARD_NOPE", 1)
        settings = railyard.Settings({"RAILYARD_RAILS": 3})
        self.assertIn("3", [one["value"] for one in settings.list() if one["name"] == "RAILYARD_RAILS"])

        class Broken:
            rank, size = 0, 2

            def allgather(self, mine, seconds):
                raise RuntimeError("no way")

            def barrier(self, seconds):
                pass

        with self.assertRaisesRegex(railyard.Error, "no way"):
            railyard.World(SETTINGS, Broken())
        with self.assertRaises(AttributeError):
            railyard.World(SETTINGS, object())


class Threads(unittest.TestCase):
    def test_a_wait_lets_other_threads_run(self):
        def work(window):
            waited = []
            thread = threading.Thread(target=lambda: waited.append(window.wait_signal(0, timeout=30)))
            thread.start()
            while not window._in_use:
                pass
            window.signal(0, 0, 7)
            thread.join(30)
            self.assertEqual(waited, [7])

        alone(work)

    def test_many_threads_in_one_window(self):
        def work(window):
            def add():
                for _ in range(500):
                    window.atomic(0, 0, AtomicOp.add, 1)
                    window.put_signal(0, 8, b"12345678", 1)

            threads = [threading.Thread(target=add) for _ in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join(30)
            self.assertEqual(window.fetch_atomic(0, 0, AtomicOp.fetch), 2000)
            self.assertEqual(window.wait_signal(1, 2000), 2000)

        alone(work)

    def test_close_with_a_thread_inside_is_refused(self):
        def work(window):
            inside = threading.Event()
            ended = []

            def wait():
                inside.set()
                ended.append(window.wait_signal(0, timeout=30))

            thread = threading.Thread(target=wait)
            thread.start()
            inside.wait()
            while not window._in_use:
                pass
            other = railyard.Window.allocate(window.world, 64)
            for call in (window.close, window.abandon, window.world.close,
                         lambda: railyard.Window.close_all([other, window])):
                with self.assertRaisesRegex(railyard.Error, "another thread") as caught:
                    call()
                self.assertEqual(caught.exception.status, "busy")
            window.signal(0)
            thread.join(30)
            self.assertEqual(ended, [1])
            self.assertFalse(other.closed)
            other.close()

        alone(work)

    def test_windows_are_closed_together(self):
        def work(world):
            windows = [railyard.Window.allocate(world, 4096) for _ in range(3)]
            held = bytearray(2048)
            windows.append(railyard.Window.adopt(world, held))
            for window in windows:
                window.put_signal((world.rank + 1) % world.size, 0, b"together", signal=0)
            with self.assertRaisesRegex(railyard.Error, "given before"):
                railyard.Window.close_all([windows[0], windows[0]])
            self.assertFalse(windows[0].closed)
            railyard.Window.close_all(windows, timeout=20)
            self.assertTrue(all(window.closed for window in windows))
            held.clear()  # nobody holds it any more
            railyard.Window.close_all(windows)  # once more is nothing
            railyard.Window.close_all([])

        in_threads(2, work)


class Examples(unittest.TestCase):
    def test_everything_has_words_and_a_stub(self):
        stub = (__import__("pathlib").Path(railyard.__file__).parent / "__init__.pyi").read_text()
        for name in railyard.__all__:
            thing = getattr(railyard, name)
            if name != "__version__":
                self.assertTrue(thing.__doc__, name)
            self.assertIn(name, stub)
            if not isinstance(thing, type) or issubclass(thing, Exception):
                continue
            for member in [one for one in vars(thing) if not one.startswith("_") and one not in ("name", "value")]:
                self.assertTrue(getattr(thing, member).__doc__, f"{name}.{member}")
                self.assertRegex(stub, rf"\b{member}\b", f"{name}.{member}")

class Contexts(unittest.TestCase):
    """Several worlds, and channels, on one context."""

    def test_worlds_share_a_context(self):
        forward, backward = RankGroup(2), RankGroup(2)

        def process(number):
            with railyard.Context(ON_RAILS) as context:
                with railyard.World(bootstrap=forward.of(number), context=context) as world, \
                     railyard.World(bootstrap=backward.of(1 - number), context=context) as other, \
                     Window.allocate(world, 64) as window, Window.allocate(other, 64) as apart:
                    self.assertEqual(other.rank, 1 - number)
                    self.assertEqual(world.translate(0, other), 1)
                    for step in range(1, 6):
                        window.put_signal(1 - number, 0, numpy.full(8, step, "uint8"), signal=0)
                        apart.put_signal(number, 8, numpy.full(8, 100 + step, "uint8"), signal=1)
                        window.wait_signal(0, step)
                        apart.wait_signal(1, step)
                        self.assertTrue((window.array("uint8", 8) == step).all())
                        self.assertTrue((apart.array("uint8", 8, 8) == 100 + step).all())
                        window.barrier()
                        apart.barrier()
                    self.assertEqual(len(context.statistics()["engines"]), 1)

        side_by_side(2, process, [forward, backward])

    def test_a_world_has_the_settings_of_its_context(self):
        with railyard.Context(ON_RAILS) as context:
            with self.assertRaisesRegex(ValueError, "settings"):
                railyard.World(ON_RAILS, context=context)


if __name__ == "__main__":
    unittest.main()
