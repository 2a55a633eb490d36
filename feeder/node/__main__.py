"""A node process: owns the socket, the slots and the workers of one NUMA node.

    python -m feeder.node CHANNEL_FD PARENT_PID

Started by the supervisor, whose first packet is this process's placement. That is applied before
anything large is imported, so that all memory, and all that the workers inherit, lies where it
should; which is why imports are in functions here. Ends with the supervisor, however that ends.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
from typing import Final

from feeder.errors import FeederError
from feeder.host.placement import NodePlacement, apply_placement
from feeder.process.parent_death import die_with_parent
from feeder.process.shortage import check_import_memory, explain_shortage

_PLACEMENT_BYTES_MAX: Final = 64 * 1024


def encode_placement(placement: NodePlacement) -> bytes:
    """Return the packet that tells a node process its placement."""
    fields = {
        "node_id": placement.node_id,
        "cpus": sorted(placement.cpus),
        "memory_node": placement.memory_node,
        "workers": placement.workers,
        "pinned": placement.pinned,
    }
    return json.dumps(fields).encode()


def decode_placement(packet: bytes) -> NodePlacement:
    """Return the placement in a supervisor's first packet."""
    fields = json.loads(packet)
    return NodePlacement(**{**fields, "cpus": frozenset(fields["cpus"])})


def main(channel_fd: int, parent: int) -> int:
    """Run a node process on an inherited channel; return the exit status."""
    die_with_parent(parent)
    # A terminal signals every process of its group; the supervisor then tells us to drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end = socket.socket(fileno=channel_fd)
    packet = end.recv(_PLACEMENT_BYTES_MAX)
    if not packet:
        return 0  # the supervisor is gone
    try:
        check_import_memory()
        applied = apply_placement(decode_placement(packet))
        from feeder.node.start import serve_node

        serve_node(end, decode_placement(packet), applied.warning)
    except Exception as error:
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        report_failure(end, failure)
        return failure.exit_status
    except SystemExit as error:  # it has logged why
        return int(error.code or 0)
    return 0


def report_failure(end: socket.socket, error: FeederError) -> None:
    """Send the supervisor the reason why this process ends."""
    from feeder.process.channel import Channel, ChannelClosedError
    from feeder.worker.messages import CannotStart

    control: Channel[CannotStart, CannotStart] = Channel(end, CannotStart)
    with contextlib.suppress(ChannelClosedError):  # the supervisor is gone
        control.send(CannotStart.of(error))


if __name__ == "__main__":
    status = main(int(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    # Threads of libzmq may hang on to a peer that does not read; nothing is left that needs them.
    os._exit(status)
