"""A running contender: its script in a process, which delivers images in turns.

``scripts/protocol.py`` describes the protocol. A contender that works ahead is stopped (SIGSTOP)
between its turns, so that it neither fills its queues at the others' expense nor begins a turn with
full ones. Every problem with a contender is a RivalFailure with the reason. No contender can hang
the bench: every wait has a deadline.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from ..line_process import LineProcess
from ..machine import pinned_to

_REPLIES: Final = "FEEDER_BENCH_FD"
_CPU_TICK_S: Final = 0.01
_FAREWELL_S: Final = 10.0
_REASON_CHARACTERS: Final = 300


class RivalFailure(Exception):  # noqa: N818 -- a result for the table, not an error of the bench
    """Raised with the reason why a contender cannot be measured."""


class Introduction(msgspec.Struct, frozen=True):
    """A contender's versions, and the mean level (0–255) of its first batch."""

    versions: dict[str, str]
    mean: float


class RivalProcess(LineProcess):
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
        """Start it on ``cores``; what it prints goes to ``log``. Raises RivalFailure."""
        self._log = log
        self._works_ahead = works_ahead
        self._deadline_s = deadline_s
        with log.open("wb") as printed, pinned_to(*cores):
            try:
                super().__init__(command, environ=variables, replies=_REPLIES, log=printed.fileno())
            except OSError as error:
                raise RivalFailure(f"cannot start {command[0]}: {error.strerror}") from error

    def introduce(self) -> Introduction:
        """Wait until it has started and made a first batch, then stop it if it works ahead."""
        text = self._await("ready ")
        try:
            introduction = msgspec.json.decode(text, type=Introduction)
        except msgspec.MsgspecError:
            raise RivalFailure(f"sent an invalid introduction: {text[:100]!r}") from None
        self._pause()
        return introduction

    def take_turn(self, images: int) -> tuple[float, float]:
        """Have it deliver ``images`` images or a few more.

        Return its images per second, and per second of CPU time of all its processes: other users
        of the cores do not count in that.
        """
        busy_before_s = self._busy_s()
        began_s = time.perf_counter()
        if self._works_ahead:
            self._signal_group(signal.SIGCONT)
        try:
            self.write_line(f"go {images}")
        except OSError:
            raise self._ended() from None
        text = self._await("done ")
        taken_s = time.perf_counter() - began_s
        self._pause()
        if not text.isdigit() or int(text) < images:
            raise RivalFailure(f"delivered {text[:20]!r} images instead of {images}")
        busy_s = max(self._busy_s() - busy_before_s, _CPU_TICK_S)
        return int(text) / taken_s, int(text) / busy_s

    def dismiss(self) -> None:
        """Have it end by itself, without waiting for that."""
        self._signal_group(signal.SIGCONT)
        self.close_input()

    def close(self) -> None:
        """Let it end by itself, then SIGKILL it and all that it started. Idempotent."""
        if not self.is_open:
            return
        self.dismiss()
        try:
            self.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal_group(signal.SIGKILL)
            self.kill()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _busy_s(self) -> float:
        """Return the CPU seconds that it and all below it have used so far."""
        total_s = 0.0
        with contextlib.suppress(psutil.Error):  # gone: the wait for its reply reports that
            leader = psutil.Process(self.pid)
            for process in (leader, *leader.children(recursive=True)):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def _pause(self) -> None:
        if self._works_ahead:
            self._signal_group(signal.SIGSTOP)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self.pid, number)

    def _await(self, word: str) -> str:
        """Return what follows ``word`` in the next line."""
        try:
            line = self.next_line(self._deadline_s)
        except TimeoutError:
            self._signal_group(signal.SIGKILL)
            raise RivalFailure(
                f"did not send {word.strip()!r} within {self._deadline_s:g} s{self._log_end()}"
            ) from None
        except EOFError:
            raise self._ended() from None
        if not line.startswith(word):
            raise RivalFailure(f"sent {line[:100]!r} instead of {word.strip()!r}")
        return line.removeprefix(word)

    def _ended(self) -> RivalFailure:
        try:
            status = f"status {self.wait(_FAREWELL_S)}"
        except subprocess.TimeoutExpired:
            status = "its output closed"
        return RivalFailure(f"ended with {status}{self._log_end()}")

    def _log_end(self) -> str:
        return last_line(self._log.read_text("utf-8", "replace"), before=": ")


def last_line(text: str, *, before: str = "") -> str:
    """Return the last line that is not blank, shortened and after ``before``; "" without any."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    filled = [line for line in lines if line]
    return before + filled[-1][-_REASON_CHARACTERS:] if filled else ""
