"""Targets with one planted fault each, to prove that the harness finds such faults.

An input is a bool, true for one seed in forty: whether the fault happens.
"""

import ctypes
import itertools
import mmap
import os
import random
import time

from tests.fuzz.target import Target

_kept: list[bytes] = []


def first_fault(target: Target) -> int:
    """Return the first seed at which the target's fault happens."""
    return next(seed for seed in itertools.count() if target.input_of(seed))


def _is_now(rng: random.Random) -> bool:
    return rng.randrange(40) == 0


def _crash(is_now: bool) -> bool:
    if is_now:
        ctypes.string_at(0)
    return True


def _abort(is_now: bool) -> bool:
    if is_now:
        os.abort()
    return True


def _hang(is_now: bool) -> bool:
    while is_now:
        time.sleep(0.01)
    return True


def _slow(is_now: bool) -> bool:
    began_s = time.process_time()
    while is_now and time.process_time() < began_s + 0.3:
        pass
    return True


def _touch(is_now: bool) -> bool:
    return bool(bytearray(b"x") * (48 << 20 if is_now else 1))


def _ask(is_now: bool) -> bool:
    mmap.mmap(-1, 1 << 40 if is_now else 1)
    return True


def _keep(is_now: bool) -> bool:
    _kept.append(bytes(2000))
    return not is_now


def _error(is_now: bool) -> bool:
    if is_now:
        raise KeyError("an error that is not documented")
    return False


def _overread(is_now: bool) -> bool:
    ctypes.string_at(ctypes.create_string_buffer(4000), 4001 if is_now else 4000)
    return True


PLANTED = (
    Target("planted-crash", _is_now, _crash, 0),
    Target("planted-abort", _is_now, _abort, 0),
    Target("planted-hang", _is_now, _hang, 0),
    Target("planted-slow", _is_now, _slow, 0, slow_s=0.2),
    Target("planted-touch", _is_now, _touch, 0, memory_bytes=16 << 20),
    Target("planted-ask", _is_now, _ask, 0, memory_bytes=16 << 20),
    Target("planted-keep", _is_now, _keep, 0, growth_bytes=2 << 20),
    Target("planted-error", _is_now, _error, 0),
    Target("planted-overread", _is_now, _overread, 0, native=True),
)
