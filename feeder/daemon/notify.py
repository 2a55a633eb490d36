"""Reports the daemon's state to systemd: the sd_notify protocol, one datagram for each message.

systemd names a datagram socket in NOTIFY_SOCKET, a path or "@name" in the abstract namespace;
without one every method does nothing. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import socket
from collections.abc import Mapping

from feeder.errors import ResourceError

_SEND_DEADLINE_S = 1.0  # systemd reads at once; if it is stuck, the daemon must not be


class Notifier:
    """Sends READY=1, STATUS=, STOPPING=1, WATCHDOG=1 and EXTEND_TIMEOUT_USEC=."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._has_watchdog = "WATCHDOG_USEC" in environ

    def ready(self, status: str = "") -> None:
        """Report that batches can be served; ResourceError if systemd cannot be reached."""
        if not self.send("READY=1", status):
            raise ResourceError(
                f"systemd cannot be notified of readiness: NOTIFY_SOCKET={self._address} accepts "
                "no message; check the sandbox's access to it"
            )

    def watchdog(self) -> None:
        """Send a keep-alive if systemd expects them; to be called twice as often, at least."""
        if self._has_watchdog:
            self.send("WATCHDOG=1")

    def send(self, assignment: str = "", status: str = "") -> bool:
        """Send an assignment, a status that systemctl shows, or both; False if that fails."""
        if not self._address:
            return True
        # In one line: a newline would begin another assignment.
        lines = (assignment, f"STATUS={' '.join(status.split())}" if status else "")
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_DEADLINE_S)
                sender.sendto("\n".join(filter(None, lines)).encode(), address)
        except OSError:
            return False
        return True
