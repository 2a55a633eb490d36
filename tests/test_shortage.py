"""Too little memory, threads or files: one line that says what to raise, and status 4."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.shortage import check_threads, explain_os_error, explain_shortage
from tests.daemon import DEADLINE_S, wait_until
from tests.sources import make_source, pack

SCRIPT = Path(sys.executable).with_name("feeder")
LIMITS_KB = (25_000, 90_000, 115_000, 140_000, 150_000, 300_000)
ABORTS = ("Traceback", "OpenBLAS", "Aborted", "src/thread.cpp", "Exception ignored")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shortage")
    pack(make_source(folder / "source", 5), folder / "dataset", jobs=1)
    return folder / "dataset"


def under_limit(limit_kb: int, *command: str | Path) -> list[str]:
    """The command line that runs a command with that much address space."""
    return ["bash", "-c", f'ulimit -v {limit_kb} && exec "$@"', "bash", *map(str, command)]


@pytest.mark.parametrize("limit_kb", LIMITS_KB)
@pytest.mark.parametrize("name", ["pack", "verify", "unpack", "preview", "status", "keygen"])
def test_little_address_space_is_one_line(
    name: str, limit_kb: int, dataset: Path, tmp_path: Path
) -> None:
    arguments: dict[str, tuple[str | Path, ...]] = {
        "pack": ("pack", dataset.parent / "source", tmp_path / "made", "--jobs", "1"),
        "verify": ("verify", dataset, "--jobs", "1"),
        "unpack": ("unpack", dataset, tmp_path / "made", "--jobs", "1"),
        "preview": ("preview", dataset, "--out", tmp_path / "made"),
        "status": ("status", f"ipc://{tmp_path}/none", "--timeout", "0.1"),
        "keygen": ("keygen", tmp_path / "made"),
    }
    done = subprocess.run(
        under_limit(limit_kb, SCRIPT, *arguments[name]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in ((4, 5) if name == "status" else (0, 4)), done.stderr
    assert not any(word in done.stderr for word in ABORTS), done.stderr
    if done.returncode == 4:
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("feeder: error")]
        assert "raise that limit" in error or "ulimit -v" in error or "give it more" in error
    assert done.returncode != 4 or limit_kb < 300_000, "that was enough until now"


@pytest.mark.parametrize("limit_kb", LIMITS_KB)
def test_a_daemon_with_little_address_space_serves_or_is_one_line(
    limit_kb: int, dataset: Path, tmp_path: Path
) -> None:
    command = ["serve", "--data", f"d={dataset}", "--workers", "1", "--bind", f"ipc://{tmp_path}/s"]
    with subprocess.Popen(
        under_limit(limit_kb, SCRIPT, *command), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("feeder: ready, "):
                process.terminate()
        status = process.wait(DEADLINE_S)
    text = "".join(said)
    assert not any(word in text for word in ABORTS), text
    assert status == (0 if "feeder: ready, " in text else 4), text
    if status == 4:
        assert len([line for line in said if line.startswith("feeder: error: ")]) == 1


@pytest.mark.parametrize("limit_kb", [30_000, 100_000, 200_000, 400_000, 600_000])
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "compare", "a.json", "b.json"),
        ("trainer_client.train", "tcp://127.0.0.1:1", "--dataset", "d", "--timeout-s", "0.1"),
    ],
    ids=lambda command: command[0],
)
def test_the_other_programs_with_little_address_space_are_one_line(
    command: tuple[str, ...], limit_kb: int
) -> None:
    done = subprocess.run(
        under_limit(limit_kb, sys.executable, "-m", *command),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (3, 4, 5), done.stderr
    assert not any(word in done.stderr for word in (*ABORTS, "bad_alloc")), done.stderr
    assert len([line for line in done.stderr.splitlines() if ": error: " in line]) == 1


def test_want_of_threads_is_found_before_libzmq_aborts() -> None:
    program = (
        "import resource, sys\nimport zmq\n"
        "from feeder.program import run_program\n"
        "from feeder.stats_request import request_counters\n"
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


def test_threads_that_were_tried_end() -> None:
    before = len(os.listdir("/proc/self/task"))
    check_threads(3)
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before, "they have ended")


def _wrapped(text: str) -> ImportError:
    """An import error as numpy raises it: the reason is in the cause."""
    error = ImportError("Importing the numpy C-extensions failed")
    error.__cause__ = ImportError(text)
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (_wrapped("x.so: failed to map segment from shared object"), "loading libraries"),
        (_wrapped("libjpeg.so.62: cannot open shared object file"), "libjpeg.so.62"),
        (ModuleNotFoundError("No module named 'msgspec'", name="msgspec"), "msgspec is not inst"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_kind_of_shortage_has_its_line(error: Exception, words: str) -> None:
    explained = explain_shortage(error)
    assert isinstance(explained, ResourceError)
    assert words in str(explained)
    assert "\n" not in str(explained)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'feeder.gone'", name="feeder.gone"),
        ImportError("cannot import name 'x' from 'feeder'", name="feeder"),
        RuntimeError("dictionary changed size during iteration"),
        OSError(errno.ENOENT, "No such file or directory", "x"),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_faults_of_ours_are_no_shortage(error: Exception) -> None:
    assert explain_shortage(error) is None


def test_an_unexpected_os_error_names_its_file() -> None:
    error = OSError(errno.EACCES, "Permission denied", "/somewhere")
    assert str(explain_os_error(error)) == (
        "the operating system refused: Permission denied: /somewhere"
    )
