"""Communicators made and destroyed in two ways: by torch (`new_group`), or by calls to the NCCL that torch has loaded.

NCCL's service threads look up every half second, and a communicator's end waits for them: so several are destroyed at a
time, each in a thread of its own. torch can destroy only one after the other.
"""
import concurrent.futures
import ctypes

import torch
import torch.distributed as dist

import ranks

FLOAT32, SUM = 7, 0  # ncclFloat32, ncclSum
ID_BYTES = 128


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * ID_BYTES)]


class ByTorch:
    def __init__(self, number):
        del number
        self.group = dist.new_group([0, 1])

    def all_reduce(self, data):
        dist.all_reduce(data, group=self.group)

    @staticmethod
    def destroy(communicators):
        for communicator in communicators:
            dist.destroy_process_group(communicator.group)


class ByNccl:
    def __init__(self, number):
        self.library = ctypes.CDLL("libnccl.so.2")
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        store, key, identity = dist.distributed_c10d._get_default_store(), f"communicator{number}", UniqueId()
        if dist.get_rank() == 0:
            self.check(self.library.ncclGetUniqueId(ctypes.byref(identity)))
            store.set(key, bytes(identity))
        else:
            ctypes.memmove(ctypes.byref(identity), store.get(key), ID_BYTES)
            store.delete_key(key)
        self.handle = ctypes.c_void_p()
        self.check(self.library.ncclCommInitRank(ctypes.byref(self.handle), 2, identity, dist.get_rank()))

    def check(self, code):
        if code != 0:
            raise RuntimeError(f"NCCL: {self.library.ncclGetErrorString(code).decode()}")

    def all_reduce(self, data):
        place, stream = ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.library.ncclAllReduce(place, place, ctypes.c_size_t(data.numel()), FLOAT32, SUM, self.handle, stream))
        ranks.synchronize()

    @staticmethod
    def destroy(communicators):
        with concurrent.futures.ThreadPoolExecutor(len(communicators)) as threads:
            list(threads.map(lambda each: each.check(each.library.ncclCommDestroy(each.handle)), communicators))


WAYS = {"torch": ByTorch, "nccl": ByNccl}
