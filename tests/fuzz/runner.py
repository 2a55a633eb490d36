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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.batch import FINISHED, PROGRESS, RUNNING
from tests.fuzz.sanitized import REPOSITORY, Build

FINDINGS_MAX = 3
HANG_S = 60.0
"""Wall time after which an input counts as a hang; CPU time has its own limit."""

_POLL_S = 0.05
_STACK_S = 3.0
_DETAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Span:
    """Inputs of a target: the seeds first .. first + count - 1."""

    target: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Failure:
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
    slowest_s: float = 0.0
    slowest_seed: int = 0
    peak_bytes: int = 0
    kept_bytes: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        """Inputs that were refused as documented."""
        return self.inputs - self.accepted - len(self.failures)

    def add(self, other: "Tally") -> None:
        """Add the results of other inputs of the target."""
        self.inputs += other.inputs
        self.accepted += other.accepted
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest_seed = other.slowest_s, other.slowest_seed
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.kept_bytes = max(self.kept_bytes, other.kept_bytes)
        self.failures += other.failures


def run_spans(spans: Sequence[Span], build: Build, *, hang_s: float = HANG_S) -> dict[str, Tally]:
    """Run the spans one after another; return the results of each target."""
    tallies = {span.target: Tally() for span in spans}
    remaining = list(spans)
    while remaining:
        remaining = [
            span
            for span in _run_process(remaining, build, hang_s, tallies)
            if span.count and len(tallies[span.target].failures) < FINDINGS_MAX
        ]
    return tallies


def _run_process(
    spans: Sequence[Span], build: Build, hang_s: float, tallies: dict[str, Tally]
) -> list[Span]:
    """Run spans in one process until it ends; return those that remain."""
    with tempfile.TemporaryDirectory(prefix="feeder-fuzz-", dir=_memory_folder()) as name:
        folder = Path(name)
        progress = folder / "progress"
        progress.write_bytes(bytes(PROGRESS.size * len(spans)))
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.batch", name]
        command += [build.extension, *(f"{s.target}:{s.first}:{s.count}" for s in spans)]
        with (folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | build.environment,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )
            try:
                hung = _watch(process, progress, hang_s)
            finally:
                process.kill()
                process.wait()
        output = (folder / "stderr").read_text(errors="replace").splitlines()
        return _account(spans, progress.read_bytes(), process.returncode, hung, output, tallies)


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


def _account(
    spans: Sequence[Span],
    progress: bytes,
    status: int,
    hung: bool,
    output: list[str],
    tallies: dict[str, Tally],
) -> list[Span]:
    remaining: list[Span] = []
    found = False
    for number, span in enumerate(spans):
        state, seed, done, accepted, slowest_ns, slowest, peak, kept = PROGRESS.unpack_from(
            progress, number * PROGRESS.size
        )
        tally = Tally(done, accepted, slowest_ns / 1e9, slowest, peak, kept)
        if state == RUNNING:
            found = True
            what = "hangs" if hung else _describe(status, output)
            detail = "\n".join(output[-_DETAIL_LINES:])
            tally.inputs = seed - span.first + 1
            tally.failures.append(Failure(span.target, seed, what, detail))
            remaining.append(Span(span.target, seed + 1, span.first + span.count - seed - 1))
        elif state != FINISHED:
            remaining.append(span)
        tallies[span.target].add(tally)
    if not found and (remaining or status != 0):
        raise RuntimeError("the process did not run its inputs:\n" + "\n".join(output[-40:]))
    return remaining


def _describe(status: int, output: list[str]) -> str:
    for line in output:
        if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
            return line.strip()
    if status < 0:
        return f"dies of {signal.Signals(-status).name}"
    return output[-1].strip() if output else f"ends with status {status}"


def _memory_folder() -> str | None:
    """Return a folder in memory if there is one, as targets that read files write many."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
