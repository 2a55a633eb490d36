"""Targets with one planted fault each, to prove that the harness finds such faults.

An input is a bool, true for one seed in forty: whether the fault happens.
"""

import ctypes
import itertools
import mmap
import time
from collections.abc import Callable
from typing import Any

from tests.fuzz.target import Target

_kept: list[bytes] = []


def first_fault(target: Target) -> int:
    """Return the first seed at which the target's fault happens."""
    return next(seed for seed in itertools.count() if target.input_of(seed))


def _planted(
    name: str, fault: Callable[[], object], *, native: bool = False, **limits: Any
) -> Target:
    def check(is_now: bool) -> bool:
        if is_now:
            fault()
        return False

    target = f"planted-{name}"
    return Target(target, lambda rng: rng.randrange(40) == 0, check, 0, native=native, **limits)


def _hang() -> None:
    while True:
        time.sleep(0.01)


def _work() -> None:
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass


def _keep(_: bool) -> bool:
    _kept.append(bytes(2000))
    return False


PLANTED = (
    _planted("crash", lambda: ctypes.string_at(0)),
    _planted("hang", _hang),
    _planted("slow", _work, slow_s=0.2),
    _planted("touch", lambda: bytearray(b"x") * (48 << 20), memory_bytes=16 << 20),
    _planted("ask", lambda: mmap.mmap(-1, 1 << 40), memory_bytes=16 << 20),
    _planted("error", lambda: {}["an error that is not documented"]),
    _planted(
        "overread", lambda: ctypes.string_at(ctypes.create_string_buffer(4000), 4001), native=True
    ),
    Target("planted-keep", lambda rng: False, _keep, 0, growth_bytes=2 << 20),
)
