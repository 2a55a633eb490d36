"""How a client interprets the events of its connections."""

import os

import zmq

from feeder.security.handshake import HandshakeWatch


def test_reused_descriptor_number_leaks_no_descriptor() -> None:
    watch = HandshakeWatch("tcp://127.0.0.1:5555", None)
    ours, other = os.pipe()
    before = os.listdir("/proc/self/fd")
    assert watch.on_event(zmq.EVENT_CONNECTED, ours, 0.0) is None
    assert watch.on_event(zmq.EVENT_CONNECTED, 1 << 20, 0.0) is None
    assert os.listdir("/proc/self/fd") == before
    os.close(ours)
    os.close(other)
