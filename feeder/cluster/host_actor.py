"""The actor that runs a slot's feeder on its host.

It answers with plain dictionaries: the hosts of a cluster may run different versions of Feeder
while they are upgraded. Its death ends the daemon, whatever kills it.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from feeder.cluster.daemon_run import DaemonRun


class HostActor:
    """One launch of a feeder."""

    def __init__(self, config_toml: str, options: Sequence[str]) -> None:
        self._run = DaemonRun(config_toml, options)

    def watch(self, seen: int, timeout_s: float) -> dict[str, Any]:
        """Return the daemon's RunState once it is newer than ``seen``, or after ``timeout_s``."""
        return {**dataclasses.asdict(self._run.wait_change(seen, timeout_s)), "pid": os.getpid()}

    def end(self) -> None:
        """End the daemon: it drains first."""
        self._run.end()
