"""Asks a node process for its counters, as a client without a session."""

import time

import zmq

from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.handshake import (
    MONITORED,
    HandshakeWatch,
    await_message,
    dial,
    say_first,
)
from feeder.keys import ClientKeys
from feeder.metrics import Counters
from feeder.shortage import ZMQ_THREADS, check_threads
from feeder.wire import Refused, Stats, StatsRequest, decode_from_node, encode


def request_counters(endpoint: str, timeout_s: float, keys: ClientKeys | None = None) -> Counters:
    """Return the counters of the node process at ``endpoint``, by name.

    Raises PeerError when it does not answer in time or the keys do not fit, ProtocolError when what
    answers is something else, ConfigError for an endpoint that means nothing.
    """
    check_threads(ZMQ_THREADS)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        monitor = socket.get_monitor_socket(MONITORED)
        watch = HandshakeWatch(endpoint, keys)
        try:
            dial(socket, endpoint, keys)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{endpoint!r} is no endpoint ({error.strerror}): write tcp://HOST:PORT or "
                "ipc:///PATH"
            ) from error
        say_first(socket, encode(StatsRequest()))
        deadline_s = time.monotonic() + timeout_s
        while await_message(socket, monitor, watch, deadline_s - time.monotonic()):
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
