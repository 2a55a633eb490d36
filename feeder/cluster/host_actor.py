"""The actor that runs ``feeder serve`` on its host, and reports what becomes of it.

One thread starts the daemon, reads its log to the end and reaps it. It is the thread that the
kernel watches for the daemon's PDEATHSIG, so it must be the process's main thread or, as here, end
only after the daemon has. As a program, ``host_actor PID ARGUMENT…`` becomes ``feeder ARGUMENT…``
in a process that dies with its parent.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from feeder.cluster.policy.start_facts import PREFIX, StartFacts, read_facts
from feeder.process.child import describe_ending, die_with_parent, python_command, start_python

END_MAX_S: Final = 8.0
"""For a daemon to drain and end, which it promises within 5 s."""

_LINE_BYTES_MAX: Final = 1 << 16


class HostActor:
    """One daemon, from its start to its end; the actor's death ends it, whatever kills it.

    It answers with plain dictionaries: the hosts of a cluster may run different versions of Feeder
    while they are upgraded.
    """

    def __init__(self, config_toml: str, options: Sequence[str]) -> None:
        """Start it with a configuration, and further arguments of ``feeder serve``."""
        self._config_toml = config_toml
        self._options = [*options]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._changed = threading.Condition()
        self._state, self._last_line = "starting", ""
        self._facts: StartFacts | None = None
        self._thread = threading.Thread(target=self._run, name="feeder daemon", daemon=True)
        self._thread.start()

    def watch(self, seen: str, timeout_s: float) -> dict[str, Any]:
        """The daemon's state once it is not ``seen``, or after ``timeout_s``.

        "state" is "starting", then "ready", then "ended". "facts" are those of its start, or None.
        "last_line" of its log is without the prefix; it is the reason once the daemon has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state != seen, timeout_s)
            return {
                "state": self._state,
                "facts": self._facts and dataclasses.asdict(self._facts),
                "last_line": self._last_line,
            }

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
            self._change("ended", f"the daemon cannot be started: {error.strerror}")

    def _serve(self, config: Path) -> None:
        arguments = ("serve", "--config", str(config), "--log-format", "text", *self._options)
        with self._changed:
            if self._is_ending:
                return
            self._process = process = start_python(
                "feeder.cluster.host_actor",
                os.getpid(),
                *arguments,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        lines: list[str] = []
        assert process.stderr is not None
        with process.stderr:
            while data := process.stderr.readline(_LINE_BYTES_MAX):
                line = data.decode("utf-8", "backslashreplace")
                with contextlib.suppress(OSError, ValueError):  # a full disk ends no feeder
                    sys.stderr.write(line)  # Ray keeps it with the actor's log
                if self._facts is None:
                    lines.append(line)
                    self._facts = read_facts(lines) if "ready, " in line else None
                if line.strip():
                    self._change("ready" if self._facts else "starting", line.strip())
        status, last = process.wait(), self._last_line
        if self._facts or status < 0 or not last:
            last = f"feeder serve {describe_ending(status)}; its last line: {last or 'none'}"
        self._change("ended", last)

    def _change(self, state: str, line: str) -> None:
        with self._changed:
            self._state = state
            self._last_line = line.removeprefix(PREFIX).removeprefix("error: ")
            self._changed.notify_all()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    # The kernel keeps PDEATHSIG over exec: no daemon outlives the actor that started it, not even
    # one whose host was declared dead while it was stopped.
    command = python_command("feeder", *sys.argv[2:])
    os.execv(command[0], command)
