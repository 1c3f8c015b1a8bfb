"""A KV cache moves from a prefill process to a decode process, as users of NIXL do it: each side registers its cache,
they exchange descriptors, one list of blocks is written, and a notification comes after all of it.

    railyard launch -n 2 -- python3 python/examples/kv_cache.py

NIXL's words and ours: an agent is a rank; registered memory is a window over the cache (a NumPy array; a torch tensor
or CUDA memory would be given to Window.adopt the same way); a transfer descriptor list is a list of (offset here,
offset there, bytes); the notification is a signal, which takes effect after every put before it, whatever rails they
took. The message that says which request it was travels in the window too."""
import argparse
import json

import numpy
import railyard

PREFILL, DECODE = 0, 1
ARRIVED, GRANTED = 0, 1  # signals
NOTE = 4096  # bytes for messages, behind the cache


def blocks_of(table, layers, block_bytes, cache_blocks):
    """Descriptors (offset, bytes) of the blocks of one request, layer by layer."""
    return [((layer * cache_blocks + block) * block_bytes, block_bytes) for layer in range(layers) for block in table]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=32, help="of the cache, for each layer")
    parser.add_argument("--block-bytes", type=int, default=32768)
    parser.add_argument("--requests", type=int, default=5)
    options = parser.parse_args()
    cache_bytes = options.layers * options.blocks * options.block_bytes
    with railyard.World() as world:
        assert world.size == 2, "a prefill and a decode process: railyard launch -n 2"
        memory = numpy.zeros(cache_bytes + NOTE, "uint8")  # what the model's cache would be
        note = memory[cache_bytes:]
        peer = 1 - world.rank
        with railyard.Window.adopt(world, memory) as window:
            for request in range(1, options.requests + 1):
                chooser = numpy.random.default_rng(request)
                tables = [chooser.permutation(options.blocks)[:6].tolist() for _ in range(2)]  # of prefill, of decode
                if world.rank == DECODE:
                    # Decode says where it wants the blocks: the peer learns no more than offsets.
                    wanted = blocks_of(tables[DECODE], options.layers, options.block_bytes, options.blocks)
                    text = json.dumps(wanted).encode()
                    window.put_signal(peer, cache_bytes, len(text).to_bytes(4, "little") + text, GRANTED)
                    window.wait_signal(ARRIVED, request, from_rank=PREFILL)
                    told = json.loads(bytes(note[4:4 + int.from_bytes(bytes(note[:4]), "little")]))
                    assert told == {"request": request}
                    for number, (offset, size) in enumerate(wanted):
                        assert (memory[offset:offset + size] == 1 + (request * 31 + number) % 255).all(), "wrong block"
                    print(f"request {request}: {len(wanted)} blocks, {sum(size for _, size in wanted) >> 10} KiB, right")
                else:
                    mine = blocks_of(tables[PREFILL], options.layers, options.block_bytes, options.blocks)
                    for number, (offset, size) in enumerate(mine):  # the model fills its blocks
                        memory[offset:offset + size] = 1 + (request * 31 + number) % 255
                    window.wait_signal(GRANTED, request, from_rank=DECODE)
                    wanted = json.loads(bytes(note[4:4 + int.from_bytes(bytes(note[:4]), "little")]))
                    for (here, size), (there, room) in zip(mine, wanted):
                        assert size == room
                        window.put(peer, there, memory[here:here + size])
                    text = json.dumps({"request": request}).encode()
                    window.put_signal(peer, cache_bytes, len(text).to_bytes(4, "little") + text, ARRIVED)
                    window.quiet(peer)  # the blocks may be used again
                window.barrier()


if __name__ == "__main__":
    main()
