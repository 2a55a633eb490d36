"""A process that shares a decoded cache, for tests of races and crashes.

    python -m tests.sample.cache_process FD PLAN race SEED KEYS      fills the missing keys
    python -m tests.sample.cache_process FD PLAN die KEY STORE       is killed before that store
    python -m tests.sample.cache_process FD PLAN hold KEY            claims, writes half, and waits

The first prints the number of keys that it has filled; the third prints the claimed entry and waits
for the end of its input.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.sample import cache_file
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import CachePlan
from tests.support.sources import REPOSITORY

SOURCE = 0xFEED_0000_0000_0001


def size_of(key: int) -> int:
    """Return the size of a key's content, 3 to 7 KB."""
    return 3001 + 37 * (key % 101)


def content_of(key: int) -> NDArray[np.uint8]:
    return np.random.Generator(np.random.Philox(key)).integers(0, 256, size_of(key), np.uint8)


def hash_of(key: int) -> int:
    """Return a key's hash, a bad one so that keys collide."""
    return key // 3 * 3


def find(cache: DecodedCache, *keys: int) -> list[int]:
    """Return the offsets of keys' contents, negative if absent."""
    hashes = np.array([hash_of(key) for key in keys], np.uint64)
    return cache.find(SOURCE, hashes, np.array(keys, np.int64)).tolist()


def read(cache: DecodedCache, offset: int, size_bytes: int) -> NDArray[np.uint8]:
    return cache.pixels(size_bytes)[offset : offset + size_bytes]


def fill(cache: DecodedCache, key: int) -> bool:
    """Claim, write and publish a key; return False if it cannot be claimed."""
    entry = cache.claim(SOURCE, hash_of(key), key, size_of(key))
    if entry is None:
        return False
    assert cache.write(entry, content_of(key))
    cache.publish(entry)
    return True


class _Dying:
    """The cache's words; the process is killed instead of the n-th store."""

    def __init__(self, words: memoryview, remaining_stores: int) -> None:
        self.words, self.remaining_stores = words, remaining_stores

    def __getitem__(self, index: int) -> int:
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.store(index, value)

    def store(self, index: int, value: int) -> None:
        if self.remaining_stores == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.remaining_stores -= 1
        self.words[index] = value

    def release(self) -> None:
        self.words.release()


def _reply(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def _die(cache: DecodedCache, key: int, store: int) -> None:
    dying = _Dying(cache._words, store)
    cache._words = dying  # type: ignore[assignment]

    class Native:
        find_offsets = cache_file._native.find_offsets

        @staticmethod
        def store_word(words: _Dying, index: int, value: int) -> None:
            words.store(index, value)

    cache_file._native = Native  # type: ignore[assignment]
    fill(cache, key)
    _reply(f"survived with {dying.remaining_stores} stores remaining")


def _race(cache: DecodedCache, seed: int, keys: int) -> None:
    order, fills = list(range(keys)), 0
    random.Random(seed).shuffle(order)
    _reply("ready")
    sys.stdin.readline()
    for key in order:
        (offset,) = find(cache, key)
        if offset < 0:
            fills += fill(cache, key)
        else:
            assert np.array_equal(read(cache, offset, size_of(key)), content_of(key))
    _reply(fills)


def _hold(cache: DecodedCache, key: int) -> None:
    entry = cache.claim(SOURCE, hash_of(key), key, size_of(key))
    assert entry is not None
    assert cache.write(entry, content_of(key)[: size_of(key) // 2])
    _reply(entry)
    sys.stdin.read()


@contextmanager
def process(cache: DecodedCache, *arguments: str | int) -> Iterator["subprocess.Popen[str]"]:
    """Run such a process on a cache, and kill it on exit."""
    plan = msgspec.json.encode(cache.plan).decode()
    command = [sys.executable, "-m", "tests.sample.cache_process", str(cache.fileno()), plan]
    child = subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=REPOSITORY,
        pass_fds=[cache.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def main(fd: int, plan: str, command: str, *arguments: int) -> None:
    cache = DecodedCache(fd, msgspec.json.decode(plan, type=CachePlan))
    {"race": _race, "die": _die, "hold": _hold}[command](cache, *arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
