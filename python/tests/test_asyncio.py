"""asyncio: the loop sleeps on the world's descriptor, tasks fail and are cancelled, others go on."""
import asyncio
import unittest

import numpy
import railyard
from railyard import Window
from support import ON_RAILS, SETTINGS, in_threads, run_program

SINGLE = {"RAILYARD_BOOTSTRAP": "single", "RAILYARD_INTERFACES": "lo"}


class Loop(unittest.TestCase):
    def test_ping_pong(self):
        async def play(window, rank):
            for number in range(1, 51):
                if rank == 0:
                    await window.put_signal(1, 0, numpy.full(1000, number), 0)
                    await window.wait_signal_async(0, number, from_rank=1)
                else:
                    await window.wait_signal_async(0, number, from_rank=0)
                    self.assertTrue((window.array("int64", 1000) == number).all())
                    await window.put_signal(0, 0, b"answer", 0)
            await window.quiet_async()
            await window.barrier_async()

        def rank(world):
            with Window.allocate(world, 1 << 16) as window:
                asyncio.run(play(window, world.rank))

        for settings in (SETTINGS, ON_RAILS):
            in_threads(2, rank, settings)

    def test_ping_pong_of_processes(self):
        for settings in ({}, {"RAILYARD_SHARED_MEMORY": "off"}):
            done = run_program("""
                import asyncio, railyard
                async def play(window, me):
                    for number in range(1, 6):
                        if me == 0:
                            await asyncio.sleep(0.05)  # the other loop sleeps by now
                            window.put_signal(1, 0, b"12345678", 0)
                            await window.wait_signal_async(0, number)
                        else:
                            await window.wait_signal_async(0, number)
                            window.put_signal(0, 0, b"12345678", 0)
                with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                    asyncio.run(play(window, world.rank))
                    print("played")
                """, 2, settings)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(done.stdout.count("played"), 2, done.stdout)

    def test_a_signal_stored_by_a_process_of_this_host_wakes_the_loop(self):
        done = run_program("""
            import asyncio, time, railyard
            railyard._aio._ASK_AFTER_S = 1e9  # nobody but the loop sleeps
            with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                if world.rank == 1:
                    asyncio.run(window.wait_signal_async(0))
                    window.signal(0)
                else:
                    while world.statistics()["direct_wakes"] == 0:
                        time.sleep(0.02)  # asleep by now, or in a later round
                        window.signal(1, 1)
                    window.signal(1, 0)
                    window.wait_signal(0)
                    print("woken")
            """, 2)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("woken", done.stdout)

    def test_an_idle_loop_sleeps(self):
        """Counted in passes, not in time: one that polls makes thousands."""
        done = run_program("""
            import asyncio, railyard, railyard._aio as aio
            passes = 0
            def counted(self, pump=aio._Watch._pump):
                global passes
                passes += 1
                pump(self)
            aio._Watch._pump = counted
            async def main(window):
                waiting = asyncio.create_task(window.wait_signal_async(0))
                await asyncio.sleep(0.5)
                window.signal(0)
                await waiting
            with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                asyncio.run(main(window))
                assert passes < 1000, passes
                print("slept")
            """, 1)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("slept", done.stdout)

    def test_a_loop_sleeps_while_its_ticket_is_under_way(self):
        """Counted in passes, too: a look at a ticket must not wake the loop that is about to sleep."""
        done = run_program("""
            import asyncio, os, signal, time, railyard, railyard._aio as aio
            passes = 0
            def counted(self, pump=aio._Watch._pump):
                global passes
                passes += 1
                pump(self)
            aio._Watch._pump = counted
            async def main(window, peer):
                while open(f"/proc/{peer}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
                    time.sleep(0.01)
                waiting = asyncio.create_task(window.put(1, 0, b"12345678").wait_async())
                await asyncio.sleep(0.5)
                slept = passes
                os.kill(peer, signal.SIGCONT)
                await waiting
                assert 0 < slept < 500, slept
            with railyard.World() as world, railyard.Window.allocate(world, 64) as window:
                if world.rank == 0:
                    window.wait_signal(0)
                    asyncio.run(main(window, int(window.array("int64", 1)[0])))
                    print("slept")
                else:
                    window.put_value(0, 0, os.getpid())
                    window.signal(0, 0)
                    window.quiet()
                    os.kill(os.getpid(), signal.SIGSTOP)
            """, 2, {"RAILYARD_SHARED_MEMORY": "off"})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("slept", done.stdout)

    def test_other_tasks_run_meanwhile(self):
        async def main(window):
            ticks = 0

            async def tick():
                nonlocal ticks
                while ticks < 20:
                    ticks += 1
                    await asyncio.sleep(0)
                window.signal(0, 3)

            ticking = asyncio.create_task(tick())
            self.assertEqual(await window.wait_signal_async(3), 1)
            await ticking
            self.assertEqual(ticks, 20)
            fetched = await window.start_fetch_atomic(0, 0, railyard.AtomicOp.add, 5)
            self.assertEqual(fetched, 0)
            window.put_counter(0, 0, b"12345678", 2)
            self.assertEqual(await window.wait_counter_async(2), 1)

        with railyard.World(SINGLE) as world, Window.allocate(world, 64) as window:
            asyncio.run(main(window))

    def test_failures_of_tasks(self):
        async def main(window):
            with self.assertRaisesRegex(railyard.TimeoutError, "signal 0 holds 0.*the end of 0.02 s"):
                await window.wait_signal_async(0, timeout=0.02)
            with self.assertRaises(railyard.OutOfRangeError):
                await window.wait_signal_async(64)
            cancelled = asyncio.create_task(window.wait_signal_async(1))
            failing = asyncio.create_task(window.wait_signal_async(2))
            going_on = asyncio.create_task(window.wait_signal_async(4))
            await asyncio.sleep(0)
            cancelled.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await cancelled

            async def trouble():
                raise KeyError("mine")

            with self.assertRaisesRegex(KeyError, "mine"):
                await asyncio.gather(trouble(), asyncio.sleep(0))
            window.signal(0, 4)
            self.assertEqual(await going_on, 1)
            window.close()
            window.world.close()
            with self.assertRaises(railyard.ClosedError):
                await failing

        world = railyard.World(SINGLE)
        asyncio.run(main(Window.allocate(world, 64)))

    def test_one_loop_after_another(self):
        with railyard.World(SINGLE) as world, Window.allocate(world, 64) as window:
            for number in range(1, 4):
                async def main():
                    waiting = asyncio.create_task(window.wait_signal_async(0, number))
                    await asyncio.sleep(0)
                    window.signal(0)
                    return await waiting

                self.assertEqual(asyncio.run(main()), number)

    def test_a_lost_peer_ends_an_asynchronous_wait(self):
        done = run_program("""
            import asyncio, os, railyard
            world = railyard.World()
            window = railyard.Window.allocate(world, 64)
            world.barrier()  # nothing was ever sent: only a question finds out
            if world.rank == 1:
                os.kill(os.getpid(), 9)
            try:
                asyncio.run(window.wait_signal_async(0, timeout=40, from_rank=1))
            except railyard.PeerLostError as error:
                print("lost:", error.peer)
            """, 2)
        self.assertIn("lost: 1", done.stdout)


if __name__ == "__main__":
    unittest.main()
