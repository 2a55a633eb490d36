"""Requests a node process's counters, as a client without a session."""

import contextlib
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.client.contexts import open_context
from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.metrics.counters import Counters
from feeder.process.name_lookup import resolve_endpoint
from feeder.security.handshake import MONITORED, HandshakeWatch, dial
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
        _send_first(socket, encode(StatsRequest()))
        while _await_message(socket, monitor, watch, deadline_s - time.monotonic()):
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


def _send_first(dealer: "zmq.Socket[bytes]", frame: bytes) -> None:
    """Send the request, unless libzmq has already given up the connection.

    That can happen on a busy machine. ``_await_message``, called next, then reports the reason.
    """
    with contextlib.suppress(zmq.Again):
        dealer.send(frame, zmq.DONTWAIT)


def _await_message(
    dealer: "zmq.Socket[bytes]",
    monitor: "zmq.Socket[bytes]",
    watch: HandshakeWatch,
    timeout_s: float,
) -> bool:
    """Return whether a message arrives in time. Raises HandshakeProblem if keys do not match."""
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    deadline_s = time.monotonic() + timeout_s
    while True:
        ready = dict(poller.poll(max(0, int((deadline_s - time.monotonic()) * 1000))))
        if dealer in ready:
            return True
        if monitor not in ready:
            return False
        event = recv_monitor_message(monitor)
        problem = watch.on_event(int(event["event"]), int(event["value"]), time.monotonic())
        if problem is not None:
            raise problem
