"""Ends: of objects, of processes, of interpreters. Each program here runs by itself, because it may crash."""
import unittest

import numpy
import railyard
from railyard import Window
from support import run_program

SINGLE = {"RAILYARD_BOOTSTRAP": "single", "RAILYARD_INTERFACES": "lo"}


class Closed(unittest.TestCase):
    def test_every_call_on_a_closed_window_raises(self):
        with railyard.World(SINGLE) as world:
            window = Window.allocate(world, 4096)
            fetch = window.start_fetch_atomic(0, 0, railyard.AtomicOp.add, 1)
            window.close()
            window.close()  # once more is nothing
            self.assertTrue(window.closed)
            add = railyard.AtomicOp.add
            for call in (lambda: window.put(0, 0, b"a"), lambda: window.get(0, 0, bytearray(1)), lambda: window.local,
                         lambda: window.put_value(0, 0, 1), lambda: window.put_signal(0, 0, b"a"),
                         lambda: window.put_counter(0, 0, b"a"), lambda: window.put_signal_counter(0, 0, b"a"),
                         lambda: window.signal(0), lambda: window.atomic(0, 0, add, 1),
                         lambda: window.fetch_atomic(0, 0, add), lambda: window.read_signal(0),
                         lambda: window.reset_signal(0), lambda: window.wait_signal(0), lambda: window.read_counter(0),
                         lambda: window.reset_counter(0), lambda: window.wait_counter(0), lambda: window.fence(),
                         lambda: window.quiet(), lambda: window.barrier(), lambda: window.bytes(0),
                         lambda: window.signals(0), lambda: window.array(), lambda: fetch.result(),
                         lambda: window.wait_any_signal([railyard.SignalCondition(0)]),
                         lambda: window.wait_all_signals([railyard.SignalCondition(0)])):
                with self.assertRaisesRegex(railyard.ClosedError, "closed"):
                    call()
        for call in (lambda: world.rank, lambda: world.size, lambda: world.rail_count, lambda: world.settings,
                     world.progress, world.descriptor, world.arm, world.barrier, world.statistics,
                     lambda: world.remember(b"a"), lambda: world.forget(b"a"), lambda: Window.allocate(world, 8)):
            with self.assertRaisesRegex(railyard.ClosedError, "closed"):
                call()
        world.close()

    def test_a_world_takes_its_windows_along(self):
        world = railyard.World(SINGLE)
        window = Window.allocate(world, 4096)
        world.close()
        self.assertTrue(window.closed)
        with self.assertRaises(railyard.ClosedError):
            window.put(0, 0, b"a")

    def test_views_outlive_their_window(self):
        with railyard.World(SINGLE) as world:
            with Window.allocate(world, 1 << 16) as window:
                array = window.array("int64")
                array[:] = 7
        del window, world
        self.assertTrue((array == 7).all())
        array[:] = 8

    def test_an_exception_in_a_window_is_the_one_that_is_seen(self):
        with self.assertRaisesRegex(KeyError, "mine"):
            with railyard.World(SINGLE) as world, Window.allocate(world, 64):
                raise KeyError("mine")

    def test_a_window_keeps_its_world_and_a_ticket_its_window(self):
        window = Window.allocate(railyard.World(SINGLE), 4096)
        window.put(0, 0, numpy.ones(4))
        fetch = window.start_fetch_atomic(0, 0, railyard.AtomicOp.fetch)
        del window
        self.assertEqual(fetch.result(), numpy.ones(1).view("int64")[0])

    def test_two_worlds_one_after_another(self):
        for value in range(3):
            with railyard.World(SINGLE) as world, Window.allocate(world, 64) as window:
                self.assertEqual(window.array("int64")[0], 0)
                window.put_value(0, 0, value)


class Processes(unittest.TestCase):
    def ends(self, text, ranks=1, code=0, words="", environment=None):
        done = run_program(text, ranks, environment)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertIn(words, done.stdout)
        return done.stdout

    def test_nothing_is_closed_when_the_interpreter_ends(self):
        for settings in ({}, {"RAILYARD_SHARED_MEMORY": "off", "RAILYARD_PROGRESS": "thread"}):
            with self.subTest(settings):
                said = self.ends("""
                    import numpy, railyard
                    world = railyard.World()
                    window = railyard.Window.allocate(world, 1 << 20)
                    window.put(1 - world.rank, 0, numpy.ones(1000))
                    window.barrier()
                    keep = window.array(), window.put(1 - world.rank, 0, numpy.ones(1000))
                    window.barrier()
                    print("at the end")
                    """, 2, 0, "at the end", settings)
                self.assertNotIn("rror", said)

    def test_what_is_open_is_closed_before_the_interpreter_ends(self):
        self.ends("""
            import atexit
            atexit.register(lambda: print("closed:", world.closed))  # runs after railyard's, which comes later
            import ctypes, railyard
            world = railyard.World()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(world))  # nobody would ever free it
            """, 1, 0, "closed: True")

    def test_a_daemon_thread_is_inside_when_the_interpreter_ends(self):
        said = self.ends("""
            import threading, time, railyard
            class Late:  # keeps the interpreter in its last steps, while the threads come back from their waits
                def __del__(self, sleep=time.sleep):
                    sleep(1)
            late = Late()
            world = railyard.World()
            window = railyard.Window.allocate(world, 64)
            for i in range(4):
                threading.Thread(target=window.wait_signal, args=(i,), kwargs={"timeout": 0.3}, daemon=True).start()
            while not window._in_use:
                pass
            print("at the end")
            """, 1, 0, "at the end")
        self.assertNotIn("terminate", said)

    def test_a_forked_child_is_refused_and_harms_nobody(self):
        self.ends("""
            import gc, os, sys, numpy, railyard
            world = railyard.World()
            window = railyard.Window.allocate(world, 4096)
            peer = 1 - world.rank
            child = os.fork()
            if child == 0:
                try:
                    window.put(peer, 0, b"from the child")
                except railyard.ClosedError as error:
                    assert "parent" in str(error), error
                else:
                    os._exit(3)
                try:
                    world.barrier()
                except railyard.ClosedError:
                    pass
                else:
                    os._exit(4)
                window.close()
                world.close()
                del window, world
                gc.collect()
                with railyard.World({"RAILYARD_BOOTSTRAP": "single"}) as own:  # one of its own it may have
                    with railyard.Window.allocate(own, 64) as mine:
                        mine.put_signal(0, 0, b"12345678")
                        mine.wait_signal(0)
                sys.exit(0)  # the whole way out, exit handlers too
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            window.put_signal(peer, 0, numpy.arange(8))
            window.wait_signal(0)
            window.close()
            print("the parent goes on")
            """, 2, 0, "the parent goes on")

    def test_a_lost_peer_is_named(self):
        self.ends("""
            import os, railyard
            world = railyard.World()
            window = railyard.Window.allocate(world, 64)
            window.barrier()
            if world.rank == 1:
                os.kill(os.getpid(), 9)
            try:
                window.wait_signal(0, timeout=40, from_rank=1)
            except railyard.PeerLostError as error:
                assert isinstance(error, ConnectionError) and error.peer == 1 and error.operation == "wait_signal"
                print("rank 1 is named:", error)
            """, 2, 137, "rank 1 is named")

    def test_a_block_that_raises_waits_for_nobody(self):
        self.ends("""
            import railyard
            try:
                with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                    window.barrier()
                    if world.rank == 0:
                        raise KeyError("mine")
                    window.wait_signal(0, from_rank=0)  # is not in close
            except KeyError:
                print("raised")
            except railyard.PeerLostError as error:
                print("lost", error.peer)
            """, 2, 0, "raised", {"RAILYARD_TIMEOUT_MS": "3000"})

    def test_control_c_ends_a_wait(self):
        self.ends("""
            import os, signal, threading, railyard
            with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                def interrupt():
                    while not window._in_use:
                        pass
                    os.kill(os.getpid(), signal.SIGINT)
                threading.Thread(target=interrupt).start()
                try:
                    window.wait_signal(0, timeout=50)
                except KeyboardInterrupt:
                    print("interrupted")
            """, 1, 0, "interrupted")


if __name__ == "__main__":
    unittest.main()
