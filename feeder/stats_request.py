"""Asks a node process for its counters, as a client without a session."""

import time

import zmq

from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.metrics import Counters
from feeder.wire import Refused, Stats, StatsRequest, decode_from_node, encode


def request_counters(endpoint: str, timeout_s: float) -> Counters:
    """Return the counters of the node process at ``endpoint``, by name.

    Raises PeerError when it does not answer in time, ProtocolError when what answers is something
    else, ConfigError for an endpoint that means nothing.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{endpoint!r} is no endpoint ({error.strerror}): write tcp://HOST:PORT or "
                "ipc:///PATH"
            ) from error
        socket.send(encode(StatsRequest()))
        deadline_s = time.monotonic() + timeout_s
        while socket.poll(max(0, int((deadline_s - time.monotonic()) * 1000))):
            answer = decode_from_node(socket.recv_multipart()[0])
            if isinstance(answer, Stats):
                return answer.counters
            if isinstance(answer, Refused):
                raise ProtocolError(f"{endpoint}: {answer.message}")
        raise PeerError(
            f"no answer from {endpoint} within {timeout_s:g} s: is a feeder serving there?"
        )
    finally:
        context.destroy(linger=0)
