"""Channels between two contexts."""
import asyncio
import gc
import threading
import unittest
import weakref

import numpy
import railyard
from support import SETTINGS


class Channels(unittest.TestCase):
    def setUp(self):
        self.contexts = [railyard.Context(SETTINGS) for _ in range(2)]
        self.listener = self.contexts[0].listen()
        connected = []
        thread = threading.Thread(target=lambda: connected.append(self.contexts[1].connect(self.listener.handle)))
        thread.start()
        self.here = self.listener.accept()
        thread.join(30)
        self.there = connected[0]

    def tearDown(self):
        for one in self.contexts:
            one.close()

    def test_messages_of_all_sizes(self):
        for size in (0, 1, 8, 4000, 100_000, 3 << 20):
            message = numpy.random.default_rng(size).integers(0, 255, size, "uint8")
            destination = numpy.zeros(size + 10, "uint8")
            receive = self.there.irecv(destination, tag=5)
            send = self.here.isend(message, tag=5)
            self.assertEqual(receive.wait(20), [size])
            send.wait(20)
            self.assertTrue(receive.test())
            self.assertTrue((destination[:size] == message).all())
        self.assertEqual(self.here.statistics()["messages_sent"], 6)
        self.assertEqual(self.contexts[0].statistics()["channels"], 1)
        self.assertIn("channel", self.contexts[0].report())

    def test_groups_and_tags(self):
        places = [numpy.zeros(8, "uint8") for _ in range(3)]
        receive = self.there.irecv_group(places, [1, 2, 3])
        for tag in (3, 1, 2):
            self.here.isend(bytes([tag] * tag), tag)
        self.assertEqual(receive.wait(20), [1, 2, 3])
        self.assertEqual([list(one[:3]) for one in places], [[1, 0, 0], [2, 2, 0], [3, 3, 3]])

    def test_registered_memory(self):
        memory = numpy.zeros(1 << 20, "uint8")
        alive = weakref.ref(memory)
        registered = self.there.register(memory)
        receive = self.there.irecv(memory, registered=registered)
        self.here.isend(numpy.full(1 << 20, 9, "uint8")).wait(20)
        receive.wait(20)
        self.assertTrue((memory == 9).all())
        del memory
        gc.collect()
        self.assertIsNotNone(alive())
        registered.close()
        del receive
        gc.collect()
        self.assertIsNone(alive())

    def test_memory_registered_for_sends(self):
        message = numpy.random.default_rng(1).integers(0, 255, 1 << 20, "uint8").tobytes()
        target = numpy.zeros(1 << 20, "uint8")
        for memory in (bytearray(message), message):  # of the second nobody may change a byte
            with self.here.register(memory, railyard.MemoryUse.sends) as registered:
                with self.assertRaisesRegex(railyard.Error, "for sends"):
                    self.here.irecv(bytearray(1 << 20), registered=registered)
                target[:] = 0
                receive = self.there.irecv(target)
                self.here.isend(memory, registered=registered).wait(20)
                self.assertEqual(receive.wait(20), [1 << 20])
                self.assertEqual(target.tobytes(), message)
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.here.register(message)
        with self.assertRaises(TypeError):
            self.here.register(bytearray(8), "sends")

    def test_two_threads_on_one_channel(self):
        got = []

        def receive():
            for _ in range(20):
                place = bytearray(8)
                self.there.irecv(place).wait(20)
                got.append(bytes(place))
                self.there.isend(b"answered")

        thread = threading.Thread(target=receive)
        thread.start()
        place = bytearray(8)
        for number in range(20):
            answer = self.here.irecv(place)
            waiting = threading.Thread(target=answer.wait, args=(20,))
            waiting.start()  # waits in the channel while this thread sends on it
            self.here.isend(number.to_bytes(8, "little"))
            waiting.join(20)
            self.assertTrue(answer.test())
        thread.join(20)
        self.assertEqual(got, [number.to_bytes(8, "little") for number in range(20)])

    def test_errors(self):
        with self.assertRaises(railyard.TimeoutError):
            self.there.irecv(bytearray(8)).wait(0.05)
        with self.assertRaises(railyard.TimeoutError):
            self.listener.accept(timeout=0)
        with self.assertRaisesRegex(ValueError, "handle"):
            self.contexts[1].connect(b"short")
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.there.irecv(bytes(8))
        with self.assertRaises(TypeError):
            self.here.isend(17)
        with self.assertRaises(railyard.Error):
            self.there.irecv_group([bytearray(1)] * 9, [0] * 9)

    def test_the_ends(self):
        place = bytearray(1 << 20)
        request = self.there.irecv(place)
        with self.assertRaises(BufferError):  # it is held
            place.clear()
        self.there.close()
        place.clear()
        for call in (request.test, request.wait, lambda: self.there.isend(b"a"), lambda: self.there.irecv(bytearray(1)),
                     lambda: self.there.register(bytearray(8)), self.there.statistics):
            with self.assertRaises(railyard.ClosedError):
                call()
        with self.assertRaises(railyard.PeerLostError):  # the peer has closed it
            self.here.irecv(bytearray(8)).wait(20)
        self.contexts[0].close()
        with self.assertRaises(railyard.ClosedError):
            self.listener.accept()
        with self.assertRaises(railyard.ClosedError):
            self.here.isend(b"a")

    def test_asyncio(self):
        async def main():
            place = bytearray(8)
            receive = self.there.irecv(place)
            self.here.isend(b"whatever")
            self.assertEqual(await receive, [8])
            self.assertEqual(place, b"whatever")
            with self.assertRaises(railyard.TimeoutError):
                await self.there.irecv(bytearray(8)).wait_async(0.1)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
