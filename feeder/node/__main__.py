"""A node process: owns the socket, the slots and the workers of one NUMA node.

    python -m feeder.node CHANNEL_FD PARENT_PID

The supervisor starts it and sends its placement as the first packet. This is applied before
anything large is imported, so that all memory, and all that the workers inherit, is placed by it;
this is why functions import here. The process ends with the supervisor, however that ends.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Final

from feeder.errors import FeederError
from feeder.host.placement import NodePlacement, apply_placement
from feeder.process.child import die_with_parent
from feeder.process.shortage import check_import_memory, explain_shortage

_PLACEMENT_BYTES_MAX: Final = 64 * 1024


def main(channel_fd: int, parent: int) -> int:
    """Run a node process on an inherited channel; return the exit status."""
    die_with_parent(parent)
    # A terminal signals every process of its group; the supervisor then sends Drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end = socket.socket(fileno=channel_fd)
    packet = end.recv(_PLACEMENT_BYTES_MAX)
    if not packet:
        return 0  # the supervisor has ended
    try:
        check_import_memory()
        import msgspec

        warning = apply_placement(msgspec.json.decode(packet, type=NodePlacement))
        from feeder.node.loop import serve_node

        serve_node(end, warning)
    except Exception as error:
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
        from feeder.worker.messages import CannotStart

        control: Channel[CannotStart, CannotStart] = Channel(end, CannotStart)
        with contextlib.suppress(ChannelClosedError, ChannelFullError):  # it has ended, or hangs
            control.send(CannotStart.of(failure))
        return failure.exit_status
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    # libzmq's threads may wait for a peer that does not read; no more is to be sent.
    os._exit(status)
