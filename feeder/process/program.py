"""Runs a Feeder program, so that any failure ends it with one line and an exit status.

    signals   SIGINT and SIGTERM end it at once, until its own code handles them
    streams   always open, and never the cause of a traceback:
              a stream is closed when the program starts       its output is dropped
              standard error cannot be written                 its output is dropped
              standard output cannot be written (full disk)    OutputError, once
              the reader of standard output has gone (| head)  OutputClosedError, once
    main()    imported and run; every error becomes one line on standard error
    exit      output is flushed while an error can still be reported

The program's first module imports this one only, so that a Ctrl-C during its imports leaves no
traceback. So this module imports at its top only what Python has loaded at its start: ``_signal``,
because ``signal`` builds its enumerations.
"""

import io
import os
import sys

TYPE_CHECKING = False  # typing's own would take an import of typing
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from types import FrameType
    from typing import TextIO

    from _typeshed import ReadableBuffer
else:
    import _signal

_STOP_SIGNALS = (_signal.SIGINT, _signal.SIGTERM)
before_exit: "list[Callable[[], None]]" = []
"""What is called when a signal ends the process at once, e.g. to flush standard error."""


def run_program(name: str, main: "Callable[[], int]") -> int:
    """Run ``main`` as a process; return its exit status. ``name`` is the prefix of error lines."""
    line = f"{name}: interrupted\n".encode()

    def exit_at_once(number: int, frame: "FrameType | None") -> None:
        # For the imports, when there is nothing to clean up.
        try:
            os.write(2, line)
            for call in before_exit:
                call()
        finally:  # even if standard error cannot be written
            os._exit(128 + number)

    for number in _STOP_SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:  # as in a shell's background jobs
            _signal.signal(number, exit_at_once)
    try:
        _open_missing_descriptors()
        sys.stdout = _text_stream(_Output(1, "w", closefd=False), sys.stdout)
        sys.stderr = _text_stream(_Messages(2, "w", closefd=False), sys.stderr)
        return run_guarded(name, main)
    finally:
        for number in _STOP_SIGNALS:
            # A handler could not rely on much while Python shuts down.
            if _signal.getsignal(number) is exit_at_once:
                _signal.signal(number, _signal.SIG_DFL)


def run_guarded(name: str, main: "Callable[[], int]") -> int:
    """As ``run_program``, within a process that has one; SystemExit and bugs propagate."""
    from feeder.errors import FeederError, OutputClosedError

    # Imported before memory can run out.
    from feeder.process.shortage import explain_os_error, explain_shortage

    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OutputClosedError as error:
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        return 128 + _signal.SIGINT
    except Exception as error:
        explained = error if isinstance(error, FeederError) else explain_shortage(error)
        if explained is None and isinstance(error, OSError):
            explained = explain_os_error(error)
        if explained is None:
            raise
    sys.stderr.write(f"{name}: error: {explained}\n")
    return explained.exit_status


def _open_missing_descriptors() -> None:
    # Otherwise the next file that is opened gets the number, and output is written to it.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)


def _text_stream(raw: io.RawIOBase, former: "TextIO | None") -> io.TextIOWrapper:
    """A stream to ``raw`` with the settings of the ``former`` one; None: it is closed."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(former, "encoding", "utf-8"),
        errors="backslashreplace",  # file names hold any character, and bytes that are not text
        line_buffering=getattr(former, "line_buffering", False)
        or getattr(former, "write_through", False),
    )


class _Output(io.FileIO):
    """Standard output, whose first write error is raised as OutputError."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            while (size := super().write(data)) is None:  # another process made it non-blocking
                import select

                select.select([], [self], [])
            return size
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:  # Python flushes once more at exit
                os.dup2(nowhere.fileno(), 1)
            from feeder.errors import OutputClosedError, OutputError

            if isinstance(error, BrokenPipeError):
                raise OutputClosedError("the reader of standard output has gone") from None
            raise OutputError(
                f"standard output cannot be written ({error.strerror}): the output is incomplete; "
                "redirect it to a file system that is writable and has room"
            ) from None


class _Messages(io.FileIO):
    """Standard error, which drops what cannot be written, as no stream is left to report it."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data) or memoryview(data).nbytes
        except OSError:
            return memoryview(data).nbytes
