"""Standard input, output and error: always open, and never the cause of a traceback.

    closed when the program starts   it works as usual; what it would have printed is dropped
    standard error cannot be written what it would have printed there is dropped
    standard output cannot be written (full disk)    OutputError, once
    the reader of standard output has gone (| head)  OutputClosedError, once

After an error standard output drops what it is given, so that nothing is raised again when Python
flushes it at its end. Only what Python itself has loaded at its start is imported at the top.
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
    """Open /dev/null in place of each standard descriptor that is closed.

    Otherwise the next file that is opened gets its number, and what is printed lands in that file.
    Call this before anything else is opened.
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
    """Put guarded streams into sys.stdout and sys.stderr, with the encodings of those there."""
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(_STDIN, closefd=False)))
    sys.stdout = _text_stream(_Output(_STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text_stream(_Messages(_STDERR, "w", closefd=False), sys.stderr)


def _text_stream(raw: io.RawIOBase, like: "TextIO | None") -> io.TextIOWrapper:
    """Return a stream to ``raw`` with the settings of ``like``, None where it was closed."""
    buffered = io.BufferedWriter(raw)
    if not isinstance(like, io.TextIOWrapper):
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace")
    return io.TextIOWrapper(
        buffered,
        encoding=like.encoding,
        errors="backslashreplace",  # names of files hold any character, and bytes that are none
        line_buffering=like.line_buffering or like.write_through,
    )


class _Output(io.FileIO):
    """Standard output, whose errors end the program in one line."""

    _is_lost = False

    def write(self, data: "ReadableBuffer") -> int:
        size = memoryview(data).nbytes
        if self._is_lost:
            return size
        try:
            while (written := super().write(data)) is None:
                self._await_room()  # somebody has made the pipe non-blocking
            return written
        except OSError as error:
            self._is_lost = True
            from feeder.errors import OutputClosedError, OutputError

            if isinstance(error, BrokenPipeError):
                raise OutputClosedError("the reader of standard output has gone") from None
            raise OutputError(
                f"standard output cannot be written ({error.strerror}): what was printed there is "
                "incomplete; send it to a place that has room and is writable"
            ) from None

    def _await_room(self) -> None:
        import select

        polled = select.poll()
        polled.register(self, select.POLLOUT)
        polled.poll()


class _Messages(io.FileIO):
    """Standard error, which drops what cannot be written: where would it be reported?"""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written
