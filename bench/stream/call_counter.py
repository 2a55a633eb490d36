"""Counts the Python calls of a process, as ``sys.setprofile`` reports them: C calls do not count.

Nothing in the product takes part. A node process is given the counter by a ``sitecustomize`` module
on its ``PYTHONPATH``, which Python imports before anything else.
"""

import json
import os
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Self

Calls = Counter[tuple[str, str]]  # how many calls, by file and function

_BENCH: Final = str(Path(__file__).parents[1])
_TIMEOUT_S: Final = 60.0

_SITECUSTOMIZE: Final = """\
import sys
if {module!r} in sys.orig_argv:
    from {package}.call_counter import report_calls
    report_calls({path!r})
"""


class CallCounter:
    """Counts within its context in this thread, and in threads started there for good."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []  # one for each call; append is atomic, a count is not

    def __enter__(self) -> Self:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def take(self, since: str = "") -> Calls:
        """Return the calls since the last ``take``, without those of the bench itself.

        Those before the first call of a function in the folder ``since`` are left out.
        """
        codes = self._codes[:]
        del self._codes[: len(codes)]
        own = [code for code in codes if not code.co_filename.startswith(_BENCH)]
        first = next((at for at, code in enumerate(own) if code.co_filename.startswith(since)), 0)
        return Calls((code.co_filename, code.co_qualname) for code in own[first:])

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.append(frame.f_code)


def report_calls(path: str) -> None:
    """Count this process's calls from now on; answer each byte from ``path`` with the new ones."""
    counter = CallCounter()
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)

    def serve() -> None:
        while link.recv(1):
            calls = [[*place, count] for place, count in counter.take().items()]
            link.sendall(json.dumps(calls).encode() + b"\n")

    threading.Thread(target=serve, daemon=True).start()  # before it counts: not counted
    counter.__enter__()


@contextmanager
def counting_child(module: str) -> Iterator[Callable[[], Calls]]:
    """Count the calls of the first process within the body that runs ``module``.

    Yields what returns the calls since it was last called; it waits for the process to start.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-"))
        path = f"{folder}/calls"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(_TIMEOUT_S)
        listener.bind(path)
        listener.listen()
        text = _SITECUSTOMIZE.format(module=module, package=__package__, path=path)
        Path(folder, "sitecustomize.py").write_text(text)
        before = os.environ.get("PYTHONPATH", "")
        stack.callback(os.environ.__setitem__, "PYTHONPATH", before)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))

        @cache
        def connect() -> tuple[socket.socket, BufferedReader]:
            connection = stack.enter_context(listener.accept()[0])
            connection.settimeout(_TIMEOUT_S)
            return connection, stack.enter_context(connection.makefile("rb"))

        def take() -> Calls:
            connection, answers = connect()
            connection.sendall(b"?")
            answer = json.loads(answers.readline())
            return Calls({(file, function): count for file, function, count in answer})

        yield take
