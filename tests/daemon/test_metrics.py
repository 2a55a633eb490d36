"""Counters by name and as text."""

from feeder.metrics.counters import SessionCounters, SocketCounters, WorkerCounters
from feeder.metrics.fields import flatten, format_counters
from feeder.metrics.records import CacheRecord, NodeRecord
from feeder.wire.messages import Stats, decode_from_node, encode


def test_all_counters_exist_from_the_start_and_reasons_are_added() -> None:
    socket = SocketCounters()
    socket.drop("malformed")
    socket.drop("malformed")
    node = NodeRecord(batches=3, stages={"read": 0.25, "decode": 1.5}, cache=CacheRecord(hits=2))
    counters = flatten(node, SessionCounters(), socket, WorkerCounters())
    assert counters["batches"] == 3
    assert counters["cache.hits"] == 2
    assert counters["sessions_expired"] == 0
    assert counters["frames_dropped.malformed"] == 2
    assert counters["stage_seconds.decode"] == 1.5
    assert decode_from_node(encode(Stats(counters=counters))) == Stats(counters=counters)


def test_printed_counters_are_aligned() -> None:
    text = format_counters({"node": "host/0", "images": 1234567, "stage_seconds.read": 0.1234})
    assert text.splitlines() == [
        "node                host/0",
        "images              1,234,567",
        "stage_seconds.read  0.123",
    ]
    assert format_counters({}) == ""
