"""Too little memory, threads or files: one line with the limit to raise, and status 4."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.process.shortage import explain_shortage
from tests.process.commands import SCRIPT, run_of
from tests.support.daemon import DEADLINE_S

ABORTS = ("Traceback", "OpenBLAS", "Aborted", "src/thread.cpp", "Exception ignored")


def under_limit(limit_kb: int, *command: str | Path) -> list[str]:
    return ["bash", "-c", f'ulimit -v {limit_kb} && exec "$@"', "bash", *map(str, command)]


@pytest.mark.parametrize(
    ("name", "limit_kb"),
    [("verify", 25_000), ("pack", 90_000), ("pack", 300_000)],
)
def test_little_address_space_is_one_line(
    name: str, limit_kb: int, packed: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        under_limit(limit_kb, SCRIPT, *run_of(name, packed, tmp_path)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, 4), done.stderr
    assert not any(word in done.stderr for word in ABORTS), done.stderr
    if done.returncode == 4:
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("feeder: error")]
        assert "raise that limit" in error or "ulimit -v" in error or "give it more" in error
    assert done.returncode != 4 or limit_kb < 300_000, "300 MB should be enough"


@pytest.mark.parametrize("limit_kb", [90_000, 300_000])
def test_a_daemon_with_little_address_space_serves_or_is_one_line(
    limit_kb: int, packed: Path, tmp_path: Path
) -> None:
    command = ["serve", "--data", f"d={packed}", "--workers", "1", "--bind", f"ipc://{tmp_path}/s"]
    with subprocess.Popen(
        under_limit(limit_kb, SCRIPT, *command), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("feeder: ready, "):
                process.terminate()
        status = process.wait(DEADLINE_S)
    text = "".join(lines)
    assert not any(word in text for word in ABORTS), text
    assert status == (0 if "feeder: ready, " in text else 4), text
    if status == 4:
        assert len([line for line in lines if line.startswith("feeder: error: ")]) == 1


@pytest.mark.parametrize(
    ("command", "limit_kb"),
    [
        (("bench", "compare", "a.json", "b.json"), 30_000),
        (("trainer_client.train", "tcp://127.0.0.1:1", "--dataset", "d"), 200_000),
    ],
    ids=["bench", "train"],
)
def test_the_other_programs_with_little_address_space_are_one_line(
    command: tuple[str, ...], limit_kb: int
) -> None:
    done = subprocess.run(
        under_limit(limit_kb, sys.executable, "-m", *command),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (3, 4, 5), done.stderr
    assert not any(word in done.stderr for word in (*ABORTS, "bad_alloc")), done.stderr
    assert len([line for line in done.stderr.splitlines() if ": error: " in line]) == 1


def test_lack_of_threads_is_an_error_before_libzmq_aborts() -> None:
    program = (
        "import resource, sys\nimport zmq\n"
        "from feeder.process.program import run_program\n"
        "from feeder.client.stats import request_counters\n"
        "def main():\n"
        "    pages = int(open('/proc/self/statm').read().split()[0])\n"
        "    limit = pages * resource.getpagesize() + (4 << 20)\n"
        "    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "    request_counters('tcp://127.0.0.1:1', 0.1)\n"
        "    return 0\n"
        "sys.exit(run_program('test', main))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 4
    assert done.stderr.startswith("test: error: no further thread can be started: raise the limits")
    assert len(done.stderr.splitlines()) == 1


def _wrapped(text: str) -> ImportError:
    """An import error as numpy raises it, with the reason in its cause."""
    error = ImportError("Importing the numpy C-extensions failed")
    error.__cause__ = ImportError(text)
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out"),
        (SystemError("error return without exception set"), "memory ran out"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (_wrapped("x.so: failed to map segment from shared object"), "loading libraries"),
        (_wrapped("libjpeg.so.62: cannot open shared object file"), "libjpeg.so.62"),
        (ModuleNotFoundError("No module named 'msgspec'", name="msgspec"), "msgspec is not inst"),
        (ModuleNotFoundError("No module named 'psutil'", name="psutil"), "[daemon]'"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_kind_of_shortage_is_explained(error: Exception, words: str) -> None:
    explained = explain_shortage(error)
    assert isinstance(explained, ResourceError)
    assert words in str(explained)
    assert "\n" not in str(explained)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'feeder.gone'", name="feeder.gone"),
        ImportError("cannot import name 'x' from 'feeder'", name="feeder"),
        SystemError("bad argument to internal function"),
        OSError(errno.ENOENT, "No such file or directory", "x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_bugs_are_not_explained_as_shortage(error: Exception) -> None:
    assert explain_shortage(error) is None
