"""Too little memory, threads or files: one line with the limit to raise, and status 4."""

import _thread
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.pack.task_pool import _perform_one, raise_error
from feeder.process.output_file import explain_disk_errors
from feeder.process.shortage import check_threads, explain_os_error, explain_shortage
from tests.process.commands import COMMANDS, SCRIPT, run_of
from tests.support.daemon import DEADLINE_S, wait_until

LIMITS_KB = (
    *(25_000, 90_000, 140_000, 300_000),
    *(
        pytest.param(
            kb, marks=pytest.mark.extensive("more limits between those that make test tries")
        )
        for kb in (60_000, 115_000, 122_000, 130_000, 150_000)
    ),
)
ABORTS = ("Traceback", "OpenBLAS", "Aborted", "src/thread.cpp", "Exception ignored")


def under_limit(limit_kb: int, *command: str | Path) -> list[str]:
    return ["bash", "-c", f'ulimit -v {limit_kb} && exec "$@"', "bash", *map(str, command)]


@pytest.mark.parametrize("limit_kb", LIMITS_KB)
@pytest.mark.parametrize("name", [*COMMANDS[:2], *COMMANDS[3:7]])
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
    assert done.returncode in ((4, 5) if name == "status" else (0, 4)), done.stderr
    assert not any(word in done.stderr for word in ABORTS), done.stderr
    if done.returncode == 4:
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("feeder: error")]
        assert "raise that limit" in error or "ulimit -v" in error or "give it more" in error
    assert done.returncode != 4 or limit_kb < 300_000, "300 MB should be enough"


@pytest.mark.parametrize("limit_kb", LIMITS_KB)
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


@pytest.mark.parametrize("limit_kb", [30_000, 200_000, 600_000])
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
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (3, 4, 5), done.stderr
    assert not any(word in done.stderr for word in (*ABORTS, "bad_alloc")), done.stderr
    assert len([line for line in done.stderr.splitlines() if ": error: " in line]) == 1


def test_a_lack_of_memory_is_explained_without_an_import() -> None:
    program = (
        "import sys\n"
        "from feeder.process.shortage import explain_shortage\n"
        "sys.meta_path.clear()\n"
        "print(explain_shortage(MemoryError()))\n"
    )
    command = under_limit(2_000_000, sys.executable, "-c", program)
    explained = subprocess.check_output(command, cwd=Path(__file__).parents[2], text=True)
    assert explained.startswith(
        "memory ran out: this process may use 2,048 MB of address space: raise"
    )


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


def test_check_threads_leaves_no_thread() -> None:
    before = len(os.listdir("/proc/self/task"))
    check_threads(3)
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before, "the threads end")


def test_check_threads_does_not_wait_for_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread of the process may start threads meanwhile."""
    end, others = threading.Event(), []
    start_thread = _thread.start_new_thread

    def start_another_too(*arguments: object) -> int:
        others.append(threading.Thread(target=end.wait))
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", start_thread)
            others[-1].start()
        return start_thread(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(_thread, "start_new_thread", start_another_too)
    monkeypatch.setattr("feeder.process.shortage._THREADS_END_S", 3600.0)
    try:
        check_threads(2)
    finally:
        end.set()
        for other in others:
            other.join()


def _wrapped(text: str) -> ImportError:
    """An import error as numpy raises it, with the reason in its cause."""
    error = ImportError("Importing the numpy C-extensions failed")
    error.__cause__ = ImportError(text)
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out"),
        (SystemError("error return without exception set"), "memory ran out"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (_wrapped("x.so: failed to map segment from shared object"), "loading libraries"),
        (_wrapped("libjpeg.so.62: cannot open shared object file"), "libjpeg.so.62"),
        (ModuleNotFoundError("No module named 'msgspec'", name="msgspec"), "msgspec is not inst"),
        (ModuleNotFoundError("No module named 'torch.x'", name="torch.x"), "[client]'"),
        (ModuleNotFoundError("No module named 'altair'", name="altair"), "[plots]'"),
        (ModuleNotFoundError("No module named 'vl_convert'", name="vl_convert"), "[plots]'"),
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
        RuntimeError("dictionary changed size during iteration"),
        SystemError("bad argument to internal function"),
        OSError(errno.ENOENT, "No such file or directory", "x"),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_bugs_are_not_explained_as_shortage(error: Exception) -> None:
    assert explain_shortage(error) is None


def test_an_unexpected_os_error_names_its_file() -> None:
    error = OSError(errno.EACCES, "Permission denied", "/somewhere")
    assert str(explain_os_error(error)) == (
        "the operating system refused: Permission denied: /somewhere"
    )


@pytest.fixture
def deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("deleted_folder")
@pytest.mark.parametrize(
    ("error", "is_the_folders"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "made"), True),
        (OSError(errno.ESTALE, "Stale file handle", b"made"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/b"), False),
        (OSError(errno.ESTALE, "Stale file handle", 7), False),
        (OSError(errno.EIO, "Input/output error", "made"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
    ],
)
def test_deleted_working_directory_is_blamed_only_for_its_own_errors(
    error: OSError, is_the_folders: bool
) -> None:
    line = str(explain_os_error(error))
    assert ("the working directory was deleted" in line) is is_the_folders
    assert (str(error.strerror) in line) is not is_the_folders


def test_an_os_error_about_a_descriptor_names_its_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        os.stat(987_654)
    assert str(explain_os_error(caught.value)) == (
        "the operating system refused: Bad file descriptor: 987654"
    )
    with (
        pytest.raises(ResourceError, match="Bad file descriptor at 987654; fix that"),
        explain_disk_errors("packing into", tmp_path, "try again"),
    ):
        os.stat(987_654)


def _raise_for_a_descriptor(*_: object) -> dict[str, object]:
    os.stat(987_654)
    return {}


def test_workers_os_error_about_a_descriptor_reaches_the_parent() -> None:
    messages: list[dict[str, object]] = []
    _perform_one(_raise_for_a_descriptor, {}, {}, messages.append)
    with pytest.raises(OSError, match="Bad file descriptor: '987654'"):
        raise_error(messages[-1])
