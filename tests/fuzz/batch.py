"""Runs inputs of targets in this process, one after another; the first finding ends it.

    python -m tests.fuzz.batch FOLDER EXTENSION SPAN…     each span is TARGET:FIRST:COUNT

Before each input its seed is written to FOLDER/progress, one PROGRESS a span, so that the runner
knows the input at which this process ended. EXTENSION replaces ``feeder.jpeg._native``, or is
empty. Invariant: no module that uses the extension is imported before it is loaded.
"""

import contextlib
import faulthandler
import gc
import importlib.util
import mmap
import os
import resource
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.fuzz.target import Target

PROGRESS = struct.Struct("<QQQQQQQQ")
"""State, seed, inputs done, accepted, slowest (ns), its seed, peak memory (bytes), kept (bytes)."""

WAITING, RUNNING, FINISHED = range(3)

FINDING_STATUS = 70
_WARM_UP_MAX = 2000
_GROWTH_FROM = 2000  # inputs; fewer are too few to measure growth
_VIRTUAL_ROOM_BYTES = 1 << 30  # address space reserved but never touched: thread stacks, arenas


class Finding(Exception):  # noqa: N818 -- not an error of the harness
    """Raised when an input takes too long or too much memory."""


def main(folder: Path, extension: str, spans: list[str]) -> int:
    """Run the spans; return the exit status."""
    faulthandler.enable()
    sys.setrecursionlimit(1000)  # as in the daemon
    if extension:
        _load_extension(extension)
    from feeder.process.child import die_with_parent

    die_with_parent(os.getppid())
    os.environ["FEEDER_FUZZ_FOLDER"] = str(folder)
    from tests.fuzz.targets import find_target  # imports numpy, Pillow and the decoders

    warnings.simplefilter("error")
    with (folder / "progress").open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        for number, span in enumerate(spans):
            name, first, count = span.split(":")
            batch = _Batch(shared, number, is_sanitized=bool(extension))
            try:
                batch.run(find_target(name), int(first), int(count))
            except MemoryError:
                sys.stderr.write("MemoryError: more requested than the target's limit\n")
                return FINDING_STATUS
            except Exception:  # noqa: BLE001 -- every exception is a finding
                sys.stderr.write(_last_lines(traceback.format_exc()))
                return FINDING_STATUS
    return 0


class _Batch:
    def __init__(self, shared: mmap.mmap, span: int, *, is_sanitized: bool) -> None:
        self._shared = shared
        self._at = span * PROGRESS.size
        self._is_sanitized = is_sanitized
        self._status = os.open("/proc/self/status", os.O_RDONLY)

    def run(self, target: Target, first: int, count: int) -> None:
        here = self._shared, self._at
        make, check, slow_ns = target.input_of, target.check, int(target.slow_s * 1e9)
        seed = done = accepted = slowest_ns = slowest = peak = kept = early = 0
        warm_up = min(count // 4, _WARM_UP_MAX)
        gc.collect()
        start = self._memory("VmRSS:")
        _reset_peak()
        peak_before = self._memory("VmHWM:")
        if not self._is_sanitized:
            _limit_memory(target.memory_bytes)
        for seed in range(first, first + count):
            PROGRESS.pack_into(
                *here, RUNNING, seed, done, accepted, slowest_ns, slowest, peak, kept
            )
            value = make(seed)
            began_ns = time.process_time_ns()
            accepted += check(value)
            took_ns = time.process_time_ns() - began_ns
            done += 1
            if took_ns > slowest_ns:
                slowest_ns, slowest = took_ns, seed
                if took_ns > slow_ns:
                    raise Finding(f"took {took_ns / 1e9:.2f} s, limit {target.slow_s:g}")
            highest = self._memory("VmHWM:")
            if highest > peak_before:
                peak = highest - start
                if peak > target.memory_bytes:
                    raise Finding(f"peak {peak >> 20} MiB, limit {target.memory_bytes >> 20}")
            if done == warm_up:
                early = self._kept()
        if count >= _GROWTH_FROM:
            kept = max(0, self._kept() - early)
            if kept > target.growth_bytes:
                raise Finding(
                    f"leak: {kept >> 20} MiB kept after {count - warm_up} inputs, "
                    f"limit {target.growth_bytes >> 20}"
                )
        PROGRESS.pack_into(*here, FINISHED, seed, done, accepted, slowest_ns, slowest, peak, kept)

    def _memory(self, field: str) -> int:
        """Return a field of /proc/self/status in bytes."""
        text = os.pread(self._status, 4096, 0)
        at = text.index(field.encode()) + len(field)
        return int(text[at : text.index(b"kB", at)]) * 1024

    def _kept(self) -> int:
        gc.collect()
        return self._memory("VmRSS:")


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # not writable in some containers: earlier peaks count then
        Path("/proc/self/clear_refs").write_text("5")


def _limit_memory(room_bytes: int) -> None:
    """Limit the address space, so that huge allocations fail even if never touched."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + room_bytes + _VIRTUAL_ROOM_BYTES, hard))


def _load_extension(path: str) -> None:
    import feeder.jpeg

    spec = importlib.util.spec_from_file_location("feeder.jpeg._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["feeder.jpeg._native"] = module
    feeder.jpeg._native = module


def _last_lines(text: str, lines: int = 30) -> str:
    return "\n".join(line[:500] for line in text.splitlines()[-lines:]) + "\n"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
