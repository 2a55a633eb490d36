"""Counts the Python calls of a process, as ``sys.setprofile`` reports them: C calls do not count.

Imports nothing of the product: ``calls`` has the node process import it before anything else.
"""

import json
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Self

Calls = Counter[tuple[str, str]]  # how many calls, by file and function

_BENCH: Final = str(Path(__file__).parents[1])


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
