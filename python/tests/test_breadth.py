"""Vector and strided operations, atomics of every type, and sub-worlds."""
import math
import unittest

import numpy
import railyard
from railyard import AtomicOp, Window
from support import ON_RAILS, SETTINGS, in_threads


class Breadth(unittest.TestCase):
    def both_ways(self, work, ranks=2, size=1 << 20):
        def rank(world):
            with Window.allocate(world, size) as window:
                work(world.rank, window)
                window.barrier()

        for name, settings in (("shared memory", SETTINGS), ("rails", ON_RAILS)):
            with self.subTest(name):
                in_threads(ranks, rank, settings)

    def test_a_vector_is_one_operation_with_one_signal(self):
        def work(rank, window):
            parts = [numpy.full(n, n % 251, "uint8") for n in (0, 1, 64, 700, 30_000)]
            offsets = [0, 10, 100, 1000, 10_000]
            ticket = window.put_vector(1 - rank, zip(offsets, parts), signal=4, value=3)
            del parts[:]
            self.assertEqual(window.wait_signal(4), 3)
            for n, offset in zip((1, 64, 700, 30_000), offsets[1:]):
                self.assertTrue((window.array("uint8", n, offset) == n % 251).all())
            ticket.wait(timeout=10)
            there = [numpy.zeros(n, "uint8") for n in (64, 30_000)]
            window.get_vector(1 - rank, [(100, there[0]), (10_000, there[1])]).wait(timeout=10)
            self.assertTrue((there[0] == 64).all() and (there[1] == 30_000 % 251).all())
            window.put_vector(1 - rank, []).wait()

        self.both_ways(work)

    def test_sources_of_a_vector_live_until_they_are_sent(self):
        def work(rank, window):
            for number in range(20):
                blocks = [(i * 20_000, numpy.full(20_000, number, "uint8")) for i in range(20)]
                window.put_vector(1 - rank, blocks, signal=1)
                del blocks
                window.wait_signal(1, number + 1)
                self.assertTrue((window.array("uint8", 400_000) == number).all())
                window.barrier()

        self.both_ways(work)

    def test_parts_of_arrays_go_to_parts_of_arrays(self):
        def work(rank, window):
            side = 200
            mine = numpy.arange(side * side, dtype="float64").reshape(side, side)
            there = window.array("float64", (side, side))
            window.put_strided(1 - rank, 8 * 5, mine[10:60, 20:30], 8 * side, signal=2)
            window.wait_signal(2)
            self.assertTrue((there[:50, 5:15] == mine[10:60, 20:30]).all())
            self.assertEqual(numpy.count_nonzero(there), 500)
            window.barrier()
            back = numpy.zeros((50, 40))
            window.get_strided(1 - rank, 8 * 5, back[:, 3:13], 8 * side).wait(timeout=10)
            self.assertTrue((back[:, 3:13] == mine[10:60, 20:30]).all())
            self.assertTrue((back[:, 13:] == 0).all())
            column = numpy.zeros(side)
            window.get_strided(1 - rank, 8 * 5, column[::2], 8 * side).wait(timeout=10)
            self.assertTrue((column[:100:2] == mine[10:60, 20]).all())
            with self.assertRaisesRegex(BufferError, "equal distances"):
                window.put_strided(1 - rank, 0, mine[::2, ::3], 8)
            with self.assertRaisesRegex(BufferError, "equal distances"):
                window.put_strided(1 - rank, 0, mine[::-1], 8)
            with self.assertRaises(TypeError):
                window.put_strided(1 - rank, 0, numpy.array([None, 1])[::2], 8)

        self.both_ways(work)

    def test_wrong_blocks_move_nothing(self):
        def work(rank, window):
            good = numpy.ones(10, "uint8")
            with self.assertRaisesRegex(railyard.OutOfRangeError, "block 1 of 2"):
                window.put_vector(1 - rank, [(0, good), ((1 << 20) - 5, good)])
            with self.assertRaises(railyard.OutOfRangeError):
                window.put_vector(1 - rank, [(-1, good)])
            with self.assertRaises(ValueError):
                window.put_vector(1 - rank, [(0, good, 3)])
            with self.assertRaises(TypeError):
                window.put_vector(1 - rank, [(0, 17)])
            with self.assertRaises(BufferError):
                window.get_vector(1 - rank, [(0, b"read-only")])
            with self.assertRaisesRegex(railyard.OutOfRangeError, "do not fit"):
                window.put_strided(1 - rank, 0, numpy.ones((4, 8), "uint8")[:, :4], 1 << 19)
            window.barrier()
            self.assertEqual(numpy.count_nonzero(window.array()), 0)

        self.both_ways(work)

    def test_atomics_of_every_type(self):
        def work(rank, window):
            for _ in range(50):
                window.atomic(0, 0, AtomicOp.add, 0.5, dtype="float64")
                window.atomic(0, 8, AtomicOp.add, 1, dtype=numpy.float32)
                window.atomic(0, 16, AtomicOp.min, -1 - rank, dtype="int64")
                window.atomic(0, 24, AtomicOp.max, 7 + rank, dtype=numpy.dtype("uint32"))
            window.barrier()
            self.assertEqual(window.fetch_atomic(0, 0, AtomicOp.fetch, dtype="float64"), 50.0)
            self.assertEqual(window.fetch_atomic(0, 8, AtomicOp.fetch, dtype="float32"), 100.0)
            self.assertEqual(window.fetch_atomic(0, 16, AtomicOp.fetch, signed=True), -2)
            self.assertEqual(window.fetch_atomic(0, 24, AtomicOp.fetch, width=4), 8)
            window.barrier()
            if rank == 0:
                fetch = window.start_fetch_atomic(1, 32, AtomicOp.swap, math.nan, dtype="float64")
                self.assertEqual(fetch.result(timeout=10), 0.0)
                self.assertTrue(math.isnan(window.fetch_atomic(1, 32, AtomicOp.min, 2.5, dtype="float64")))
                self.assertEqual(window.fetch_atomic(1, 32, AtomicOp.max, math.nan, dtype="float64"), 2.5)
                self.assertEqual(window.fetch_atomic(1, 40, AtomicOp.min, -3, signed=True), 0)
                self.assertEqual(window.fetch_atomic(1, 40, AtomicOp.min, 5, signed=True), -3)
            with self.assertRaisesRegex(ValueError, "complex128"):
                window.atomic(1 - rank, 0, AtomicOp.add, 1, dtype="complex128")
            with self.assertRaises(railyard.Error):
                window.atomic(1 - rank, 0, AtomicOp.bit_or, 1, dtype="float32")
            with self.assertRaises(TypeError):
                window.atomic(1 - rank, 0, AtomicOp.add, "much", dtype="float32")

        self.both_ways(work)


class SubWorlds(unittest.TestCase):
    def test_splits_nest_and_translate(self):
        def work(world):
            half = world.split(world.rank % 2, -world.rank)
            self.assertEqual((half.size, half.rank), (2, 1 - world.rank // 2))
            self.assertEqual([half.world_rank(rank) for rank in range(3)], [2 + world.rank % 2, world.rank % 2, -1])
            self.assertEqual(half.translate(0, world), half.world_rank(0))
            self.assertEqual(world.translate(world.rank, half), half.rank)
            with Window.allocate(half, 4096) as window:
                window.put_signal(1 - half.rank, 0, numpy.full(100, world.rank, "uint8"))
                window.wait_signal(0, from_rank=1 - half.rank)
                self.assertTrue((window.array("uint8", 100) == half.world_rank(1 - half.rank)).all())
                window.barrier()
                with self.assertRaisesRegex(railyard.OutOfRangeError, "ranks are 0 to 1"):
                    window.put(2, 0, b"x")
            half.barrier()
            none = world.split(-1)
            self.assertIsNone(none)
            alone = half.split(half.rank)
            half.close()
            with Window.allocate(alone, 64) as window:
                window.put(0, 0, b"12345678")
                self.assertEqual(bytes(window.local[:8]), b"12345678")
            alone.close()
            with self.assertRaises(railyard.ClosedError):
                half.split(0)

        for settings in (SETTINGS, ON_RAILS):
            with self.subTest(settings):
                in_threads(4, work, settings)

    def test_a_part_outlives_the_world_and_the_interpreter_ends_with_one_open(self):
        from support import run_program

        done = run_program("""
            import railyard
            world = railyard.World()
            part = world.split(0, -world.rank)
            world.close()
            window = railyard.Window.allocate(part, 64)
            window.put_signal(1 - part.rank, 0, b"abcd")
            window.wait_signal(0)
            import sys
            sys.stdout.write(f"rank {part.rank} of {part.size} {bytes(window.local[:4])}\\n")
            """, ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(sorted(line for line in done.stdout.splitlines() if line.startswith("rank")),
                         ["rank 0 of 2 b'abcd'", "rank 1 of 2 b'abcd'"], done.stdout)


if __name__ == "__main__":
    unittest.main()
