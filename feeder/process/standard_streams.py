"""Standard input, output and error: always open, and never the cause of a traceback.

    a stream is closed when the program starts       its output is dropped
    standard error cannot be written                 its output is dropped
    standard output cannot be written (full disk)    OutputError, once
    the reader of standard output has gone (| head)  OutputClosedError, once

After an error standard output drops what is written, so that Python's flush at exit does not raise
again. Imports at the top only what Python has loaded at its start.
"""

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def open_missing_descriptors() -> None:
    """Open /dev/null for each standard descriptor that is closed.

    Otherwise the next file that is opened gets its number, and output is written to that file. Call
    this before anything else is opened.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def guard_streams() -> None:
    """Replace sys.stdout and sys.stderr by guarded streams with the same encodings."""
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(_STDIN, closefd=False)))
    sys.stdout = _text_stream(_Output(_STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text_stream(_Messages(_STDERR, "w", closefd=False), sys.stderr)


def _text_stream(raw: io.RawIOBase, like: "TextIO | None") -> io.TextIOWrapper:
    """Return a stream to ``raw`` with the settings of ``like`` (None: that stream is closed)."""
    buffered = io.BufferedWriter(raw)
    if not isinstance(like, io.TextIOWrapper):
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace")
    return io.TextIOWrapper(
        buffered,
        encoding=like.encoding,
        errors="backslashreplace",  # file names hold any character, and bytes that are not text
        line_buffering=like.line_buffering or like.write_through,
    )


class _Output(io.FileIO):
    """Standard output, whose first write error is raised as OutputError."""

    _is_lost = False

    def write(self, data: "ReadableBuffer") -> int:
        size = memoryview(data).nbytes
        if self._is_lost:
            return size
        try:
            while (written := super().write(data)) is None:
                self._await_room()  # another process made the pipe non-blocking
            return written
        except OSError as error:
            self._is_lost = True
            from feeder.errors import OutputClosedError, OutputError

            if isinstance(error, BrokenPipeError):
                raise OutputClosedError("the reader of standard output has gone") from None
            raise OutputError(
                f"standard output cannot be written ({error.strerror}): the output is incomplete; "
                "redirect it to a file system that is writable and has room"
            ) from None

    def _await_room(self) -> None:
        import select

        polled = select.poll()
        polled.register(self, select.POLLOUT)
        polled.poll()


class _Messages(io.FileIO):
    """Standard error, which drops what cannot be written, as no stream is left to report it."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written
