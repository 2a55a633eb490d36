"""Requests a node process's counters, as a client without a session."""

import time

import zmq

from feeder.client.contexts import open_context
from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.metrics import Counters
from feeder.process.name_lookup import resolve_endpoint
from feeder.security.handshake import MONITORED, HandshakeWatch, await_message, dial, send_first
from feeder.security.keys import ClientKeys
from feeder.wire.messages import Refused, Stats, StatsRequest, decode_from_node, encode


def request_counters(endpoint: str, timeout_s: float, keys: ClientKeys | None = None) -> Counters:
    """Return the counters of the node process at ``endpoint``, by name.

    Raises PeerError when it does not answer in time or the keys do not fit, ProtocolError when what
    answers is not a feeder, ConfigError for what is no endpoint, ResourceError where descriptors or
    threads have run out.
    """
    deadline_s = time.monotonic() + timeout_s
    address = resolve_endpoint(endpoint, timeout_s)
    context = open_context(endpoint)
    try:
        socket = context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        monitor = socket.get_monitor_socket(MONITORED)
        watch = HandshakeWatch(endpoint, keys, address=address)
        try:
            dial(socket, address, keys)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{endpoint!r} is no endpoint ({error.strerror}): write tcp://HOST:PORT or "
                "ipc:///PATH"
            ) from error
        send_first(socket, encode(StatsRequest()))
        while await_message(socket, monitor, watch, deadline_s - time.monotonic()):
            try:
                answer = decode_from_node(socket.recv_multipart()[0])
            except ProtocolError as error:
                raise ProtocolError(f"{endpoint} breaks the protocol: {error}") from None
            if isinstance(answer, Stats):
                return answer.counters
            if isinstance(answer, Refused):
                raise ProtocolError(f"{endpoint}: {answer.message}")
        raise PeerError(
            f"no answer from {endpoint} within {timeout_s:g} s: is a feeder serving there?"
        )
    finally:
        context.destroy(linger=0)
