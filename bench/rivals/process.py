"""A contender at work: its script in a process of its own, asked for images turn by turn.

The protocol is described in ``scripts/protocol.py``. A contender that works ahead is stopped
(SIGSTOP) between its turns, so that it neither fills its queues at the others' expense nor begins a
turn with full ones. Whatever goes wrong with a contender is a PeerFailure that says what; nothing
it does can hang the bench: every wait has a deadline.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from bench.machine import pinned_to

_SAYS: Final = "FEEDER_BENCH_FD"
_CPU_TICK_S: Final = 0.01
_FAREWELL_S: Final = 10.0
_LINE_BYTES_MAX: Final = 1 << 16
_REASON_CHARACTERS: Final = 300


class PeerFailure(Exception):  # noqa: N818 -- a finding for the table, not an error of the bench
    """Raised with the reason why a contender cannot be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a contender says about itself and its first batch."""

    versions: Mapping[str, str]
    mean: float
    """Of all levels (0–255) of its first batch."""
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a contender did in its turn."""

    rate: float
    """Images per second."""
    cpu_rate: float
    """Images per second of CPU time, of all its processes together: what others that use the same
    cores take away is not in it."""


class PeerProcess:
    """One contender's process; a context manager that leaves nothing behind."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cores: frozenset[int],
        variables: Mapping[str, str],
        log: Path,
        works_ahead: bool,
        deadline_s: float,
    ) -> None:
        """Start it on ``cores``; what it prints goes to ``log``. Raises PeerFailure."""
        self._log = log
        self._works_ahead = works_ahead
        self._deadline_s = deadline_s
        self._received = b""
        self._closed = False
        self._output, said = os.pipe()
        with log.open("wb") as printed, pinned_to(cores):
            try:
                self._process = subprocess.Popen(
                    command,
                    env={**variables, _SAYS: str(said)},
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                    pass_fds=(said,),
                    start_new_session=True,  # one group, to stop and to end as a whole
                )
            except OSError as error:
                os.close(self._output)
                raise PeerFailure(f"cannot start {command[0]}: {error.strerror}") from error
            finally:
                os.close(said)
        assert self._process.stdin is not None
        self._input = self._process.stdin

    @property
    def pid(self) -> int:
        """The process, which leads a group of its own."""
        return self._process.pid

    def introduce(self) -> Introduction:
        """Wait until it has started and made a first batch, then have it pause."""
        text = self._await("ready ")
        try:
            told = json.loads(text)
            introduction = Introduction(
                versions={str(name): str(value) for name, value in told["versions"].items()},
                mean=float(told["mean"]),
                deviation=float(told["deviation"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PeerFailure(f"introduced itself with {text[:100]!r}") from None
        self._pause()
        return introduction

    def take_turn(self, images: int) -> Turn:
        """Have it deliver ``images`` images or a few more; return how fast it was."""
        busy_before_s = self._busy_s()
        began_s = time.perf_counter()
        if self._works_ahead:
            self._signal(signal.SIGCONT)
        self._send(f"go {images}\n")
        text = self._await("done ")
        taken_s = time.perf_counter() - began_s
        self._pause()
        if not text.isdigit() or int(text) < images:
            raise PeerFailure(f"delivered {text[:20]!r} images where {images} were asked for")
        busy_s = max(self._busy_s() - busy_before_s, _CPU_TICK_S)
        return Turn(rate=int(text) / taken_s, cpu_rate=int(text) / busy_s)

    def dismiss(self) -> None:
        """Tell it to end, without waiting for that."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._input.close()

    def close(self) -> None:
        """End it and whatever it started: at its own pace first, then for certain; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.dismiss()
        try:
            self._process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            os.close(self._output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _busy_s(self) -> float:
        """Return the CPU seconds that it and all below it have used so far."""
        total_s = 0.0
        with contextlib.suppress(psutil.Error):  # gone: whoever waits for its answer will say so
            leader = psutil.Process(self._process.pid)
            for process in (leader, *leader.children(recursive=True)):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def _pause(self) -> None:
        if self._works_ahead:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody of the group is left
            os.killpg(self._process.pid, number)

    def _send(self, line: str) -> None:
        try:
            self._input.write(line.encode())
            self._input.flush()
        except OSError:
            raise self._gone() from None

    def _await(self, word: str) -> str:
        """Return what follows ``word`` in the next line."""
        deadline_s = time.monotonic() + self._deadline_s
        while b"\n" not in self._received:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._output], [], [], left_s)[0]:
                self._signal(signal.SIGKILL)  # it had its time
                raise PeerFailure(
                    f"did not say {word.strip()!r} within {self._deadline_s:g} s"
                    f"{self._last_words()}"
                )
            piece = os.read(self._output, _LINE_BYTES_MAX)
            if not piece:
                raise self._gone()
            self._received += piece
            if len(self._received) > _LINE_BYTES_MAX:
                raise PeerFailure(f"said {len(self._received)} bytes without end")
        line, _, self._received = self._received.partition(b"\n")
        text = line.decode(errors="replace")
        if not text.startswith(word):
            raise PeerFailure(f"said {text[:100]!r} where {word.strip()!r} was due")
        return text.removeprefix(word)

    def _gone(self) -> PeerFailure:
        try:
            status = f"status {self._process.wait(_FAREWELL_S)}"
        except subprocess.TimeoutExpired:
            status = "its output closed"
        return PeerFailure(f"ended with {status}{self._last_words()}")

    def _last_words(self) -> str:
        return last_line(self._log.read_text("utf-8", "replace"), before=": ")


def last_line(text: str, *, before: str = "") -> str:
    """Return the last line that says something, shortened, or nothing."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    said = [line for line in lines if line]
    return before + said[-1][-_REASON_CHARACTERS:] if said else ""
