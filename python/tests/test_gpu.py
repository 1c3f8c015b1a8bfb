"""Tensors in the memory of a real GPU. Skipped where PyTorch finds none; the driver's double is in test_window.py."""
import importlib.util
import unittest

from support import run_program

PROGRAM = '''
    import torch, railyard

    COUNT = 1 << 18  # elements: 1 MiB
    with railyard.World() as world:
        me, other = world.rank, 1 - world.rank
        mine = torch.arange(COUNT, dtype=torch.float32, device="cuda") + 1000 * me
        hers = torch.arange(COUNT, dtype=torch.float32, device="cuda") + 1000 * other
        torch.cuda.synchronize()

        def arrived(window, there):
            """The other rank's numbers, put there in rising sizes, each seen at its signal."""
            for turn, count in enumerate((2, 1024, COUNT // 2, COUNT), 1):
                window.put_signal(other, 0, mine[:count], 0)
                window.wait_signal(0, turn, timeout=30)
                assert torch.equal(there[:count], hers[:count]), (turn, count)
                window.barrier()

        memory = torch.zeros(COUNT, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        with railyard.Window.adopt(world, memory) as window:
            arrived(window, memory)
            back = torch.zeros(COUNT, dtype=torch.float32, device="cuda")
            torch.cuda.synchronize()
            window.get(other, 0, back).wait()
            assert torch.equal(back, mine)
            host = torch.zeros(8, dtype=torch.float32)
            window.get(other, 4 * 100, host).wait()
            assert torch.equal(host, mine[100:108].cpu())
            window.barrier()
        with railyard.Window.allocate(world, 4 * COUNT, device=0) as window:
            there = torch.as_tensor(window.local, device="cuda").view(torch.float32)
            assert there.data_ptr() == window.local.__cuda_array_interface__["data"][0]
            arrived(window, there)
            del there
    print("right", flush=True)
'''


def real_gpu():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch
    return torch.cuda.is_available()


@unittest.skipUnless(real_gpu(), "PyTorch finds no GPU here")
class Tensors(unittest.TestCase):
    def both_are_right(self, environment):
        done = run_program(PROGRAM, 2, environment)
        self.assertEqual((done.returncode, done.stdout.count("right")), (0, 2), done.stdout)

    def test_through_shared_memory(self):
        self.both_are_right({"RAILYARD_SHARED_MEMORY": "on"})

    def test_over_tcp_rails(self):
        self.both_are_right({"RAILYARD_SHARED_MEMORY": "off", "RAILYARD_RAILS": "4"})
