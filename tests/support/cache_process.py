"""A process that shares a decoded cache, for the tests of races and of sudden deaths.

    python -m tests.support.cache_process FD PLAN race SEED KEYS      fills what it finds missing
    python -m tests.support.cache_process FD PLAN die KEY STORE       is killed before that store
    python -m tests.support.cache_process FD PLAN hold KEY            claims, writes half, and waits

The first two print what they did; the third prints the claimed entry, and waits for its end.
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
    """How many bytes a key has, about 4 KB and odd."""
    return 3001 + 37 * (key % 101)


def content_of(key: int) -> NDArray[np.uint8]:
    """What is to be kept for a key."""
    return np.random.Generator(np.random.Philox(key)).integers(0, 256, size_of(key), np.uint8)


def hash_of(key: int) -> int:
    """Where a key is searched: a bad hash on purpose, so that keys meet."""
    return key // 3 * 3


def find(cache: DecodedCache, *keys: int) -> list[int]:
    """The places of keys."""
    hashes = np.array([hash_of(key) for key in keys], np.uint64)
    return cache.find(SOURCE, hashes, np.array(keys, np.int64)).tolist()


def read(cache: DecodedCache, place: int, size_bytes: int) -> NDArray[np.uint8]:
    """What is at a place."""
    return cache.pixels(size_bytes)[place : place + size_bytes]


def fill(cache: DecodedCache, key: int) -> bool:
    """Claim, write and publish a key; False where it was not to be claimed."""
    entry = cache.claim(SOURCE, hash_of(key), key, size_of(key))
    if entry is None:
        return False
    assert cache.write(entry, content_of(key))
    cache.publish(entry)
    return True


class _Dying:
    """Words of which the n-th store does not happen: the process is killed instead."""

    def __init__(self, words: memoryview, stores_left: int) -> None:
        self.words, self.stores_left = words, stores_left

    def __getitem__(self, index: int) -> int:
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.store(index, value)

    def store(self, index: int, value: int) -> None:
        if self.stores_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.stores_left -= 1
        self.words[index] = value

    def release(self) -> None:
        self.words.release()


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
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
    _say(f"survived with {dying.stores_left} stores left")


def _race(cache: DecodedCache, seed: int, keys: int) -> None:
    order, fills = list(range(keys)), 0
    random.Random(seed).shuffle(order)
    _say("ready")
    sys.stdin.readline()
    for key in order:
        (place,) = find(cache, key)
        if place < 0:
            fills += fill(cache, key)
        else:
            assert np.array_equal(read(cache, place, size_of(key)), content_of(key))
    _say(fills)


def _hold(cache: DecodedCache, key: int) -> None:
    entry = cache.claim(SOURCE, hash_of(key), key, size_of(key))
    assert entry is not None
    assert cache.write(entry, content_of(key)[: size_of(key) // 2])
    _say(entry)
    sys.stdin.read()


@contextmanager
def process(cache: DecodedCache, *arguments: str | int) -> Iterator["subprocess.Popen[str]"]:
    """Run such a process on a cache; it is killed at the end, if it still runs."""
    plan = msgspec.json.encode(cache.plan).decode()
    command = [sys.executable, "-m", "tests.support.cache_process", str(cache.fileno()), plan]
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


def main(fd: int, plan: str, what: str, *arguments: int) -> None:
    """Do what the command line says."""
    cache = DecodedCache(fd, msgspec.json.decode(plan, type=CachePlan))
    {"race": _race, "die": _die, "hold": _hold}[what](cache, *arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
