"""What can be done with any record, because its fields are declared."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from feeder.cli.status import format_counters
from feeder.metrics.counters import NodeStatus, SessionCounters, SocketCounters, WorkerCounters
from feeder.metrics.fields import add, fields_of, flatten, growth, merged, unflatten
from feeder.metrics.records import (
    CacheRecord,
    ClientRecord,
    NodeRecord,
    SlotSeconds,
    WorkerRecord,
)
from feeder.wire.messages import Stats, decode_from_node, encode


@st.composite
def clients(draw: st.DrawFn) -> ClientRecord:
    seconds = st.integers(0, 1000).map(float)
    return ClientRecord(
        name=draw(st.sampled_from("ab")),
        account="u",
        dataset="d",
        is_lent=draw(st.booleans()),
        silent_s=draw(seconds),
        wanted=draw(st.integers(0, 9)),
        images=draw(st.integers(0, 1000)),
        worker_s=draw(seconds),
        slots=SlotSeconds(free=draw(seconds), sending=draw(seconds)),
    )


@given(clients(), clients())
def test_what_is_added_is_what_has_grown(before: ClientRecord, more: ClientRecord) -> None:
    now = msgspec.convert(msgspec.to_builtins(before), ClientRecord)
    add(now, more)
    done = growth(before, now)
    for name, field in fields_of(ClientRecord).items():
        assert getattr(done, name) == getattr(more if field.kind == "counter" else before, name)


@given(st.lists(clients(), min_size=1))
def test_records_are_merged_as_their_fields_say(records: list[ClientRecord]) -> None:
    images = [record.images for record in records]
    one = merged(records)
    assert one.name == records[0].name
    assert one.images == sum(images)
    assert one.slots.free == sum(record.slots.free for record in records)
    assert one.wanted == sum(record.wanted for record in records)
    assert one.silent_s == max(record.silent_s for record in records)
    assert one.is_lent == all(record.is_lent for record in records)
    assert [record.images for record in records] == images, "they stay as they are"


def test_what_fell_was_replaced_and_counts_from_zero() -> None:
    done = growth(WorkerRecord(number=1, images=100), WorkerRecord(number=1, images=30))
    assert done.images == 30
    before = NodeRecord(images=100, stages={"read": 5.0})
    done_by_node = growth(before, NodeRecord(images=130, stages={"read": 2.0, "fill": 1.0}))
    assert (done_by_node.images, done_by_node.stages) == (30, {"read": 2.0, "fill": 1.0})


def test_all_counters_exist_from_the_start_and_reasons_are_added() -> None:
    socket = SocketCounters()
    socket.frames_dropped["malformed"] += 2
    node = NodeRecord(batches=3, stages={"read": 0.25, "decode": 1.5}, cache=CacheRecord(hits=2))
    counters = flatten(node, SessionCounters(), socket, WorkerCounters())
    assert counters["batches"] == 3
    assert counters["cache.hits"] == 2
    assert counters["sessions_expired"] == 0
    assert counters["frames_dropped.malformed"] == 2
    assert counters["stage_seconds.decode"] == 1.5
    assert decode_from_node(encode(Stats(counters=counters))) == Stats(counters=counters)


def test_flat_counters_are_read_back_as_they_were_counted() -> None:
    counted = SocketCounters(bytes_sent=3, connections_opened=5)
    counted.frames_dropped["malformed"] += 1
    counted.connections_cut["too-many"] += 1
    assert unflatten(SocketCounters, flatten(NodeStatus(node="n"), counted)) == counted


def test_printed_counters_are_aligned() -> None:
    text = format_counters({"node": "host/0", "images": 1234567, "stage_seconds.read": 0.1234})
    assert text.splitlines() == [
        "node                host/0",
        "images              1,234,567",
        "stage_seconds.read  0.123",
    ]
    assert format_counters({}) == ""
