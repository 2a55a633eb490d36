"""Runs ``feeder serve`` on a host and reports what becomes of it, for the host's actor.

One thread starts the daemon, reads its log to the end and reaps it. It is the thread that the
kernel watches for the daemon's PDEATHSIG, so it must be the process's main thread or, as here, end
only after the daemon has.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from feeder.cluster.policy.start_facts import PREFIX, FactsReader, StartFacts
from feeder.process.child import describe_ending, start_python

END_MAX_S: Final = 8.0
"""For a daemon to drain and end, which it promises within 5 s."""

_LINE_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class RunState:
    """What has become of a daemon."""

    version: int
    """Grows with every change."""
    state: Literal["starting", "ready", "ended"]
    facts: StartFacts | None
    last_line: str
    """Of its log, without the prefix; the reason, once it has ended."""


class DaemonRun:
    """One daemon, from its start to its end."""

    def __init__(self, config_toml: str, options: Sequence[str]) -> None:
        """Start it with a configuration, and further arguments of ``feeder serve``."""
        self._config_toml = config_toml
        self._options = [*options]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._changed = threading.Condition()
        self._state = RunState(1, "starting", None, "")
        self._thread = threading.Thread(target=self._run, name="feeder daemon", daemon=True)
        self._thread.start()

    def wait_change(self, seen: int, timeout_s: float) -> RunState:
        """Return the state once its version is not ``seen``, or after ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version != seen, timeout_s)
            return self._state

    def end(self) -> None:
        """Send SIGTERM, SIGKILL after END_MAX_S, and return once the daemon has ended."""
        with self._changed:
            self._is_ending = True
            process = self._process
        deadline_s = time.monotonic() + END_MAX_S
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_MAX_S)
            process.kill()
        self._thread.join(max(0.1, deadline_s - time.monotonic()))

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="feeder-cluster-") as folder:
                config = Path(folder) / "feeder.toml"
                config.write_text(self._config_toml, "utf-8", "surrogateescape")
                self._serve(config)
        except OSError as error:
            self._change("ended", None, f"the daemon cannot be started: {error.strerror}")

    def _serve(self, config: Path) -> None:
        arguments = ("serve", "--config", str(config), "--log-format", "text", *self._options)
        with self._changed:
            if self._is_ending:
                return
            self._process = process = start_python(
                "feeder.cluster.daemon_child",
                os.getpid(),
                *arguments,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        reader = FactsReader()
        assert process.stderr is not None
        with process.stderr:
            while data := process.stderr.readline(_LINE_BYTES_MAX):
                line = data.decode("utf-8", "backslashreplace")
                with contextlib.suppress(OSError, ValueError):  # a full disk ends no feeder
                    sys.stderr.write(line)  # Ray keeps it with the actor's log
                facts = reader.read(line)
                if line.strip():
                    state = "ready" if facts is not None else self._state.state
                    self._change(state, facts or self._state.facts, line.strip())
        status = process.wait()
        last, was_ready = self._state.last_line, self._state.state == "ready"
        if was_ready or status < 0 or not last:
            last = f"feeder serve {describe_ending(status)}; its last line: {last or 'none'}"
        self._change("ended", self._state.facts, last)

    def _change(
        self, state: Literal["starting", "ready", "ended"], facts: StartFacts | None, line: str
    ) -> None:
        """Take a new state; a new line alone wakes nothing that waits."""
        shown = line.removeprefix(PREFIX).removeprefix("error: ")
        with self._changed:
            is_new = state != self._state.state
            self._state = RunState(self._state.version + is_new, state, facts, shown)
            if is_new:
                self._changed.notify_all()
