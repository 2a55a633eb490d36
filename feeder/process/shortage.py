"""One-line errors, with the remedy, for too little memory, threads or files and missing libraries.

Some C libraries abort the process instead of failing: for them the resource is allocated and freed
as a check before the library needs it.
"""

import _thread
import errno
import os
import time
from typing import Final

from feeder.errors import ResourceError
from feeder.installation import explain_missing_extension, install_command

# Address space for importing numpy (85 MB with OpenBLAS 0.3 and one thread) and what is imported
# before it. OpenBLAS aborts the process if it gets less.
_NUMPY_BYTES: Final = 100_000_000
TORCH_BYTES: Final = 650_000_000  # without CUDA
ZMQ_THREADS: Final = 2  # a context's: one for I/O, one that reaps sockets
_THREADS_END_S: Final = 1.0
_NO_THREAD: Final = (
    "no further thread can be started: raise the limits on processes (ulimit -u, pids.max of the "
    "cgroup) and on address space (ulimit -v)"
)
_EXTRAS: Final = {"torch": "client", "altair": "plots", "vl_convert": "plots"}
"""The extra of pyproject.toml for each library, where it is not ``daemon``."""


def explain_shortage(error: BaseException) -> ResourceError | None:
    """Explain in a line what the machine lacks; None for other errors. Takes wrapped ones, too."""
    texts = [str(error), str(error.__cause__ or ""), str(error.__context__ or "")]
    number = getattr(error, "errno", None)
    if (
        isinstance(error, MemoryError)
        or number == errno.ENOMEM
        # Python's compiler loses a MemoryError now and then.
        or (isinstance(error, SystemError) and texts[0] == "error return without exception set")
    ):
        return ResourceError(f"memory ran out: {_more_memory()}")
    if number in (errno.EMFILE, errno.ENFILE):
        return ResourceError("too many files are open: raise the limit on open files (ulimit -n)")
    if isinstance(error, RuntimeError) and "can't start new thread" in texts[0]:
        return ResourceError(_NO_THREAD)
    return _explain_import(error, texts) if isinstance(error, ImportError) else None


def _explain_import(error: ImportError, texts: list[str]) -> ResourceError | None:
    for text in texts:
        if "failed to map segment" in text or "cannot allocate" in text.lower():
            return ResourceError(f"memory ran out while loading libraries: {_more_memory()}")
        if "cannot open shared object file" in text:
            return ResourceError(f"a library cannot be loaded ({text}): install it")
    if error.name == "feeder.jpeg" and "_native" in texts[0]:
        return ResourceError(explain_missing_extension())
    top = (error.name or "").partition(".")[0]
    is_ours = top in ("feeder", "trainer_client", "bench")
    if isinstance(error, ModuleNotFoundError) and not is_ours:
        return ResourceError(
            f"the library {top} is not installed in this environment: "
            f"{install_command(_EXTRAS.get(top, 'daemon'))}"
        )
    return None


def explain_os_error(error: OSError) -> ResourceError:
    """Explain in a line an OSError that Feeder's code did not expect."""
    name = name_file(error)
    may_be_relative = not isinstance(error.filename, int) and not os.path.isabs(name)
    if error.errno in (errno.ENOENT, errno.ESTALE) and may_be_relative:
        try:
            os.getcwd()
        except OSError:
            return ResourceError(
                "the working directory was deleted: change to one that exists, and retry"
            )
    where = f": {name}" if name else ""
    return ResourceError(f"the operating system refused: {error.strerror or error}{where}")


def name_file(error: OSError) -> str:
    """The file name or descriptor number in an error, "" if it has neither."""
    name = error.filename
    return str(name) if isinstance(name, int) else os.fsdecode(name or "")


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it; children inherit it."""
    import resource  # here: this module serves also where its library cannot be loaded

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # never infinite: fs.nr_open bounds it
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_import_memory(needed_bytes: int = _NUMPY_BYTES) -> None:
    """Raise ResourceError if the process cannot map the memory that imports need."""
    import mmap

    try:
        mmap.mmap(-1, needed_bytes, flags=mmap.MAP_PRIVATE).close()
    except (OSError, MemoryError):
        raise ResourceError(f"too little memory to start: {_more_memory()}") from None


def check_threads(count: int) -> None:
    """Raise ResourceError if ``count`` threads cannot be started; libzmq would abort."""
    may_end = _thread.allocate_lock()
    threads: list[int] = []

    def wait() -> None:
        threads.append(_thread.get_native_id())
        may_end.acquire()
        may_end.release()

    with may_end:  # keeps all of them alive at the same time
        try:
            for _ in range(count):
                _thread.start_new_thread(wait, ())
        except (RuntimeError, MemoryError):
            raise ResourceError(_NO_THREAD) from None
    # A thread's stack can be reused only after the kernel has removed the thread.
    deadline_s = time.monotonic() + _THREADS_END_S
    while time.monotonic() < deadline_s and (
        len(threads) < count
        or any(os.path.exists(f"/proc/self/task/{thread}") for thread in threads)
    ):
        time.sleep(0.0001)


def _more_memory() -> str:
    # Not with the module resource, nor as text: neither its library nor a codec may be loadable.
    try:
        with open("/proc/self/limits", "rb") as limits:
            limit_bytes = int(limits.read().partition(b"Max address space")[2].split()[0])
    except (OSError, MemoryError, IndexError, ValueError):  # ValueError: it is "unlimited"
        return "give it more, or reduce its parallelism (fewer --jobs or --workers)"
    return (
        f"this process may use {limit_bytes / 1e6:,.0f} MB of address space: raise that limit "
        "(ulimit -v, or LimitAS= of the unit) to 2,000 MB or more, or lift it"
    )
