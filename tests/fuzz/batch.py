"""Runs inputs of a target in this process, one after another; the first finding ends it.

    python -m tests.fuzz.batch FOLDER EXTENSION TARGET FIRST COUNT

FOLDER/progress says which input is running, so that the runner knows at which one this process
ended. EXTENSION replaces ``feeder.jpeg._native``, or is empty. Invariant: no module that uses the
extension is imported before it is loaded.
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
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.target import Target

PROGRESS = struct.Struct("<QQQ")
"""Inputs begun, those accepted, and 1 once all are done."""

_FINDING_STATUS = 70
_WARM_UP_MAX = 2000
_GROWTH_FROM = 2000  # inputs; fewer are too few to measure growth
_VIRTUAL_ROOM_BYTES = 1 << 30  # address space reserved but never touched: thread stacks, arenas


class Finding(Exception):  # noqa: N818 -- not an error of the harness
    """Raised when an input takes too long or too much memory."""


def main(folder: Path, extension: str, name: str, first: int, count: int) -> int:
    """Run the inputs; return the exit status."""
    faulthandler.enable()
    if extension:
        _load_extension(extension)
    from feeder.process.child import die_with_parent

    die_with_parent(os.getppid())
    os.environ["FEEDER_FUZZ_FOLDER"] = str(folder)
    from tests.fuzz.targets import find_target  # imports numpy, Pillow and the decoders

    warnings.simplefilter("error")
    target = find_target(name)
    with (folder / "progress").open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        if not extension:
            _limit_memory(target.memory_bytes)
        try:
            accepted = run_inputs(
                target,
                range(first, first + count),
                lambda begun, accepted: PROGRESS.pack_into(shared, 0, begun, accepted, 0),
            )
        except MemoryError:
            sys.stderr.write("MemoryError: more requested than the target's limit\n")
            return _FINDING_STATUS
        except Exception:  # noqa: BLE001 -- every exception is a finding
            lines = traceback.format_exc().splitlines()[-30:]
            sys.stderr.write("\n".join(line[:500] for line in lines) + "\n")
            return _FINDING_STATUS
        PROGRESS.pack_into(shared, 0, count, accepted, 1)
    return 0


def run_inputs(
    target: Target, seeds: range, note: Callable[[int, int], None] = lambda begun, accepted: None
) -> int:
    """Run the inputs of some seeds; return how many are accepted.

    Raises what a check raises, and Finding over the target's limits. ``note`` gets the number of
    inputs begun, and of those accepted so far.
    """
    slow_ns = int(target.slow_s * 1e9)
    accepted = early = 0
    warm_up = min(len(seeds) // 4, _WARM_UP_MAX)
    gc.collect()
    before_bytes = _memory("VmRSS:")
    with contextlib.suppress(OSError):  # not writable in some containers: earlier peaks count then
        Path("/proc/self/clear_refs").write_text("5")
    peak_max = max(_memory("VmHWM:"), before_bytes + target.memory_bytes)
    for begun, seed in enumerate(seeds, 1):
        note(begun, accepted)
        value = target.input_of(seed)
        began_ns = time.process_time_ns()
        accepted += target.check(value)
        took_ns = time.process_time_ns() - began_ns
        if took_ns > slow_ns:
            raise Finding(f"took {took_ns / 1e9:.2f} s, limit {target.slow_s:g}")
        peak = _memory("VmHWM:")
        if peak > peak_max:
            raise Finding(
                f"peak {peak - before_bytes >> 20} MiB, limit {target.memory_bytes >> 20}"
            )
        if begun == warm_up:
            gc.collect()
            early = _memory("VmRSS:")
    gc.collect()
    kept = _memory("VmRSS:") - early
    if len(seeds) >= _GROWTH_FROM and kept > target.growth_bytes:
        raise Finding(
            f"leak: {kept >> 20} MiB kept after {len(seeds) - warm_up} inputs, "
            f"limit {target.growth_bytes >> 20}"
        )
    return accepted


def _memory(name: str) -> int:
    """A field of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_bytes()
    at = text.index(name.encode()) + len(name)
    return int(text[at : text.index(b"kB", at)]) * 1024


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


if __name__ == "__main__":
    folder, extension, name, first, count = sys.argv[1:]
    sys.exit(main(Path(folder), extension, name, int(first), int(count)))
