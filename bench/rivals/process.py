"""A running contender: its script in a process, which delivers images in turns.

``scripts/protocol.py`` describes the protocol. A contender that works ahead is stopped (SIGSTOP)
between its turns, so that it neither fills its queues at the others' expense nor begins a turn with
full ones. Every problem with a contender is a RivalFailure with the reason. No contender can hang
the bench: every wait has a deadline.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from feeder.pack.progress import ProgressLine

from ..footprint import busy_s, family
from ..line_process import LineProcess
from ..machine import pinned_to

_REPLIES: Final = "FEEDER_BENCH_FD"
_CPU_TICK_S: Final = 0.01
_FAREWELL_S: Final = 10.0
_REASON_CHARACTERS: Final = 300
_NOT_THEIRS: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # they lead to our packages

_Reply = TypeVar("_Reply")


class RivalFailure(Exception):  # noqa: N818 -- a result for the table, not an error of the bench
    """Raised with the reason why a contender cannot be measured."""


class Introduction(msgspec.Struct, frozen=True):
    """A contender's versions, and the mean level (0–255) of its first batch."""

    versions: dict[str, str]
    mean: float


def take_turns(
    verb: str,
    names: Sequence[str],
    act: Callable[[str], object],
    give_up: Callable[[str, str], object],
) -> None:
    """Call ``act`` with each contender's name, and ``give_up`` with that and why it failed."""
    progress = ProgressLine(sys.stderr)
    progress.begin(verb, "contenders", len(names))
    for name in names:
        try:
            act(name)
        except RivalFailure as failure:
            give_up(name, str(failure))
        progress.add(1)
    progress.end()


class RivalProcess(LineProcess):
    """One contender's process; a context manager that leaves nothing behind."""

    def __init__(
        self,
        python: str,
        script: Path,
        listing: Path,
        work: dict[str, object],
        *,
        cores: frozenset[int],
        log: Path,
        works_ahead: bool = False,
        deadline_s: float,
    ) -> None:
        """Start it on ``cores``, with no more threads; what it prints goes to ``log``.

        ``work`` are the fields of ``protocol.Work`` that are not in ``listing``. RivalFailure when
        it does not start.
        """
        self._log = log
        self._works_ahead = works_ahead
        self._deadline_s = deadline_s
        command = [python, str(script), str(listing), json.dumps(work, default=str)]
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
        for pool in ("OMP", "MKL", "OPENBLAS", "NUMBA", "NUMEXPR"):
            environ[f"{pool}_NUM_THREADS"] = str(len(cores))
        environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with log.open("wb") as printed, pinned_to(*cores):
            try:
                super().__init__(command, environ=environ, replies=_REPLIES, log=printed.fileno())
            except OSError as error:
                raise RivalFailure(f"cannot start {python}: {error.strerror}") from error

    def introduce(self) -> Introduction:
        """Wait until it has started and made a first batch, then stop it if it works ahead."""
        introduction = self.await_reply("ready", Introduction)
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
        delivered = self.await_reply("done", int)
        taken_s = time.perf_counter() - began_s
        self._pause()
        if delivered < images:
            raise RivalFailure(f"delivered {delivered} images instead of {images}")
        used_s = max(self._busy_s() - busy_before_s, _CPU_TICK_S)
        return delivered / taken_s, delivered / used_s

    def await_reply(self, word: str, kind: type[_Reply]) -> _Reply:
        """Return what follows ``word`` in the next line, which is JSON."""
        try:
            line = self.next_line(self._deadline_s)
        except TimeoutError:
            self._signal_group(signal.SIGKILL)
            reason = f"did not send {word!r} within {self._deadline_s:g} s{self._log_end()}"
            raise RivalFailure(reason) from None
        except EOFError:
            raise self._ended() from None
        try:
            if line.startswith(f"{word} "):
                return msgspec.json.decode(line.removeprefix(word), type=kind)
        except msgspec.MsgspecError:
            pass
        raise RivalFailure(f"sent {line[:100]!r} instead of {word!r}")

    def dismiss(self) -> None:
        """Have it end by itself, without waiting for that."""
        self._signal_group(signal.SIGCONT)
        self.close_input()

    def close(self) -> None:
        """Let it end by itself, then SIGKILL it and all that it started. Idempotent."""
        if self.is_open:
            self.dismiss()
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.wait(_FAREWELL_S)
            finally:
                self._signal_group(signal.SIGKILL)
                self.kill()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _busy_s(self) -> float:
        return busy_s(process.pid for process in family(self.pid))

    def _pause(self) -> None:
        if self._works_ahead:
            self._signal_group(signal.SIGSTOP)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self.pid, number)

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
