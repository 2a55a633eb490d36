"""Counts the Python calls of a process, as ``sys.setprofile`` reports them: C calls do not count.

Nothing in the product takes part. A node process is given the counter by a ``sitecustomize`` module
on its ``PYTHONPATH``, which Python imports before anything else.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Self

Calls = Counter[tuple[str, str]]
"""How many calls, by file and function."""

_BENCH: Final = str(Path(__file__).parents[1])
_TIMEOUT_S: Final = 60.0
_COUNT: Final = b"#"
_TAKE: Final = b"?"

_SITECUSTOMIZE: Final = """\
import sys
if {module!r} in sys.orig_argv:
    from {package}.call_counter import report_calls
    report_calls({path!r})
"""


class CallCounter:
    """Counts in the thread that starts it, and in the threads that it starts afterwards."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []  # one for each call; append is atomic, a count is not

    def __enter__(self) -> Self:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def count(self) -> int:
        """Return how many calls there were since the last ``take``."""
        return len(self._codes)

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
    """Count this process's calls from now on, and answer what ``ChildCounter`` asks at ``path``."""
    counter = CallCounter()
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)

    def serve() -> None:
        while question := link.recv(1):
            answer: object = counter.count()
            if question == _TAKE:
                answer = [[*place, calls] for place, calls in counter.take().items()]
            link.sendall(json.dumps(answer).encode() + b"\n")

    threading.Thread(target=serve, daemon=True).start()  # before it counts: not counted
    counter.__enter__()


class ChildCounter:
    """The calls of one child process, the first within the context that runs ``module``."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-")))
        path = str(folder / "calls")
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.settimeout(_TIMEOUT_S)
        self._listener.bind(path)
        self._listener.listen()
        text = _SITECUSTOMIZE.format(module=self._module, package=__package__, path=path)
        (folder / "sitecustomize.py").write_text(text)
        self._stack.enter_context(_python_path(str(folder)))
        return self

    def connect(self) -> None:
        """Wait for the process to start; it is counted from then on."""
        self._connection, _ = self._listener.accept()
        self._stack.enter_context(self._connection)
        self._connection.settimeout(_TIMEOUT_S)
        self._answers = self._stack.enter_context(self._connection.makefile("rb"))

    def count(self) -> int:
        """Return how many calls there were since the last ``take``."""
        return int(self._ask(_COUNT))

    def take(self) -> Calls:
        """Return its calls since the last ``take``."""
        return Calls({(file, function): calls for file, function, calls in self._ask(_TAKE)})

    def _ask(self, question: bytes) -> Any:
        self._connection.sendall(question)
        return json.loads(self._answers.readline())

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def _python_path(folder: str) -> Iterator[None]:
    """Put a folder on the PYTHONPATH of the processes that are started within this context."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
