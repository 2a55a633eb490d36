"""Runs a command to a Ray cluster in a child process, with a deadline.

The child imports Ray, which may hang for minutes on a dead head, print what it likes and end its
process. Here it becomes one result or one line.
"""

import os
import selectors
import subprocess
import tempfile
import time
from typing import IO, Any, Final

import msgspec

from feeder import errors
from feeder.cluster.request import Answer, Request, Stage
from feeder.errors import FeederError, PeerError
from feeder.process.child import start_python

_LINE_BYTES_MAX: Final = 1 << 22
_READ_BYTES: Final = 1 << 16


def perform(request: Request) -> dict[str, Any]:
    """Return the result of a request; its FeederError, and PeerError at the deadline."""
    deadline_s = time.monotonic() + request.timeout_s
    with tempfile.TemporaryFile() as log:
        process = start_python(
            "feeder.cluster.ray_command",
            os.getpid(),
            more={"RAY_DEDUP_LOGS": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(request))
            process.stdin.close()
            answer, doing = _await_answer(process.stdout, deadline_s)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if answer is None and time.monotonic() < deadline_s:
            raise PeerError(f"Ray ended the command while {doing}: {_last_line(log)}")
    if answer is None:
        raise PeerError(
            f"no answer within {request.timeout_s:g} s, while {doing}: is the head of the Ray "
            "cluster alive (`ray status`)? Feeders that run need no head and go on"
        )
    if answer.result is None:
        raise _error(answer)
    return answer.result


def _await_answer(stream: IO[bytes], deadline_s: float) -> tuple[Answer | None, str]:
    """Return the answer, None where none came, and what was being done at last."""
    doing, rest = "starting", b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline_s - time.monotonic())):
            data = os.read(stream.fileno(), _READ_BYTES)
            if not data or len(rest) > _LINE_BYTES_MAX:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = msgspec.json.decode(line, type=Stage | Answer)
                if isinstance(message, Answer):
                    return message, doing
                doing = message.doing
    return None, doing


def _error(answer: Answer) -> FeederError:
    kind = getattr(errors, answer.kind, PeerError)
    is_ours = isinstance(kind, type) and issubclass(kind, FeederError)
    return kind(answer.error) if is_ours else PeerError(answer.error)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _READ_BYTES))
    lines = log.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
