"""Watches the processes that run inputs, and reports the input at which one died, hung or failed.

A process runs a few thousand inputs. When one of them ends it, the next process continues after
that input, so that a finding does not hide others; a target ends after FINDINGS_MAX of them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.batch import PROGRESS
from tests.fuzz.sanitized import REPOSITORY, Build

FINDINGS_MAX = 3
HANG_S = 60.0
"""Wall time after which an input counts as a hang; CPU time has its own limit."""

_POLL_S = 0.05
_STACK_S = 3.0
_DETAIL_LINES = 40


class Span(NamedTuple):
    """Inputs of a target: the seeds first .. first + count - 1."""

    target: str
    first: int
    count: int


class Failure(NamedTuple):
    """A finding: what happened, and the end of the process's output."""

    target: str
    seed: int
    what: str
    detail: str

    @property
    def reproducer(self) -> str:
        """The command that reproduces the input and runs it alone."""
        return f".venv/bin/python -m tests.fuzz {self.target} --seed {self.seed}"


@dataclass(slots=True)
class Tally:
    """The results of a target's inputs."""

    inputs: int = 0
    accepted: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        """Inputs that were refused as documented."""
        return self.inputs - self.accepted - len(self.failures)

    @property
    def is_over(self) -> bool:
        return len(self.failures) >= FINDINGS_MAX

    def add(self, other: "Tally") -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.failures += other.failures


def run_span(span: Span, build: Build, *, hang_s: float = HANG_S) -> Tally:
    """Run inputs, in a new process after each finding."""
    tally, end = Tally(), span.first + span.count
    while span.first < end and not tally.is_over:
        span = Span(span.target, span.first, end - span.first)
        inputs = _run_process(span, build, hang_s, tally)
        span = Span(span.target, span.first + inputs, 0)
    return tally


def _run_process(span: Span, build: Build, hang_s: float, tally: Tally) -> int:
    """Run inputs until their process ends; count and return them."""
    # In memory where that is possible: targets of parsers of files write many.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="feeder-fuzz-", dir=memory) as name:
        progress, log = Path(name, "progress"), Path(name, "stderr")
        progress.write_bytes(bytes(PROGRESS.size))
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.batch", name]
        command += [build.extension, *map(str, span)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | build.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                hung = _watch(process, progress, hang_s)
            finally:
                process.kill()
                process.wait()
        lines = log.read_text(errors="replace").splitlines()
        inputs, accepted, is_done = PROGRESS.unpack(progress.read_bytes())
    detail = "\n".join(lines[-_DETAIL_LINES:])
    if not inputs:
        raise RuntimeError(f"the process did not run its inputs:\n{detail}")
    tally.inputs += inputs
    tally.accepted += accepted
    if not is_done:
        what = "hangs" if hung else _describe(process.returncode, lines)
        tally.failures.append(Failure(span.target, span.first + inputs - 1, what, detail))
    return int(inputs)


def _watch(process: "subprocess.Popen[bytes]", progress: Path, hang_s: float) -> bool:
    """Wait for the process to end; return whether it hung and was aborted."""
    last, since_s = b"", time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return False
        now = progress.read_bytes()
        if now != last:
            last, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > (hang_s if any(now) else HANG_S):  # zeros: it is starting
            process.send_signal(signal.SIGABRT)  # faulthandler prints the stack
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STACK_S)
            return True


def _describe(status: int, output: list[str]) -> str:
    for line in output:
        if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
            return line.strip()
    if status < 0:
        return f"dies of {signal.Signals(-status).name}"
    return output[-1].strip() if output else f"ends with status {status}"


def format_table(tallies: Mapping[str, Tally]) -> str:
    """A row for each target and one with the totals."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    lines = [f"{'target':16}{'inputs':>13}{'accepted':>13}{'rejected':>13}{'failures':>13}"]
    for name, tally in [*tallies.items(), ("all", total)]:
        counts = tally.inputs, tally.accepted, tally.rejected, len(tally.failures)
        lines.append(f"{name:16}" + "".join(f"{count:>13,}" for count in counts))
    return "\n".join(lines)


def format_failures(tallies: Mapping[str, Tally]) -> str:
    """Each finding with the process's output and the command that reproduces it."""
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    if not failures:
        return "no findings"
    parts = [
        f"FOUND: {failure.target}, seed {failure.seed}: {failure.what}\n"
        f"reproduce: {failure.reproducer}\n{failure.detail}\n"
        for failure in failures
    ]
    return "\n".join([*parts, f"{len(failures)} findings"])
