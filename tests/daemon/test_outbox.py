"""What the supervisor sends to a node process that reads slowly, over a real channel."""

from collections.abc import Iterator

import msgspec
import pytest

from feeder.daemon.config import load_config
from feeder.daemon.node_plan import plan_nodes
from feeder.daemon.node_process import PART_BYTES, NodeProcess
from feeder.daemon.watch import HostWatch
from feeder.host.placement import NodePlacement
from feeder.metrics.records import NodeRecord
from feeder.metrics.report import HostLoad, HostReport, NodeReport
from feeder.node.messages import (
    Diagnosed,
    Drain,
    NodeToSupervisor,
    ReportPart,
    SupervisorToNode,
)
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import open_pair

Ends = tuple[NodeProcess, Channel[NodeToSupervisor, SupervisorToNode]]
LARGE = 100 * PART_BYTES
"""More than a channel's buffer holds."""
LOAD = HostLoad(clock_s=1.0, usable_cpus=2.0, cpus=2)
EMPTY = HostWatch(1, read_load=lambda: LOAD, find_neighbours=lambda pids, now_s: ()).report


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A node process that is not running, with a channel as if it were; and the other end."""
    placement = NodePlacement(node_id=0, cpus=frozenset({0}), memory_node=None, workers=1)
    config = load_config(None, {"data": {"d": "/data/d"}})
    node = NodeProcess(plan_nodes(config, {}, [placement], files_max=65536)[0], placement)
    ours, theirs = open_pair()
    node._channel = Channel(ours, NodeToSupervisor)
    node._channel.set_timeout(0)
    other: Channel[NodeToSupervisor, SupervisorToNode] = Channel(theirs, SupervisorToNode)
    other.set_timeout(0)
    yield node, other
    node.close_channel()
    other.close()


def report(number: int, size: int = LARGE) -> HostReport:
    now = NodeRecord(
        number=0,
        name="h/0",
        pid=number,
        clock_s=1.0,
        uptime_s=1.0,
        endpoints=(),
        counters={str(at): "y" * min(4000, size - at) for at in range(0, size, 4000)},
    )
    nodes = (NodeReport(number=0, state="ready", now=now),)
    return msgspec.structs.replace(EMPTY, nodes=nodes)


def read_all(ends: Ends) -> list[SupervisorToNode | HostReport]:
    """Read on the other side, and flush on ours, until nothing is left; join parts of reports."""
    node, other = ends
    found: list[SupervisorToNode | HostReport] = []
    data = b""
    while True:
        node.flush()
        message = other.receive()
        if message is None:
            assert not data
            return found
        if isinstance(message, ReportPart):
            assert 0 < len(message.data) <= PART_BYTES
            data += message.data
            if not message.is_last:
                continue
            found.append(msgspec.msgpack.decode(data, type=HostReport))
            data = b""
        else:
            assert not data
            found.append(message)


def test_a_report_that_does_not_fit_is_sent_as_the_other_side_reads(ends: Ends) -> None:
    node, _ = ends
    node.send_report(report(1))
    assert node.has_unsent
    node.send(Drain())
    assert read_all(ends) == [report(1), Drain()]
    assert not node.has_unsent


def test_reports_do_not_pile_up(ends: Ends) -> None:
    node, _ = ends
    for number in range(10):
        node.send_report(report(number))
    assert read_all(ends) == [report(0), report(1)]
    for size in (0, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1):
        node.send_report(report(9, size))
        assert read_all(ends) == [report(9, size)]


def test_verdicts_are_left_out_while_there_is_no_room(ends: Ends) -> None:
    node, _ = ends
    node.send_verdict(Diagnosed(text="first"))
    node.send_report(report(1))
    for _ in range(1000):
        node.send_verdict(Diagnosed(text="later"))
    assert read_all(ends) == [Diagnosed(text="first"), report(1)]


def test_what_is_unsent_goes_with_the_process(ends: Ends) -> None:
    node, other = ends
    node.send_report(report(1))
    other.close()
    node.flush()
    assert not node.has_unsent
    with pytest.raises(ChannelClosedError):
        node.receive()
