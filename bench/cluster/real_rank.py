"""A real rank for the validation: takes batches over tcp as a loader does, and records requests.

    python -m bench.cluster.real_rank PARENT_PID ORDERS

ORDERS is the JSON of ``RankOrders``. It prints ``open`` when all feeders have answered, takes
batches from then on, and when its input ends prints the JSON of ``RankRecord``. A line ``error …``
comes before it ends by itself.
"""

import os
import select
import sys
import time
from typing import Final, NamedTuple

import msgspec

from feeder.client.core import events
from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.endpoints import Directory
from feeder.client.transport import Transport
from feeder.errors import FeederError
from feeder.plan.epoch import rank_indices
from feeder.process.child import die_with_parent
from feeder.wire.messages import BatchKey, Hello, Request, Welcome

from ..daemon import DATASET_NAME
from .owners import SEED, Lanes, asking_any_node
from .shape import Cluster

TIMEOUT_S: Final = 30.0


class RankOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank does."""

    cluster: Cluster
    endpoints: tuple[str, ...]
    rank: int
    any_node: bool


class Asked(NamedTuple):
    """A request for a batch."""

    at_s: float
    key: BatchKey
    node: str
    is_first: bool


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did. Times are of the machine's monotonic clock."""

    taken: list[tuple[float, int]]
    """When each batch was taken, and how many images it has."""
    asked: list[Asked]
    descriptors: int
    links: int


class _RecordingSession(ClientSession):
    """The client's session, with a record of its requests."""

    def __init__(self, job: Job, *, buffers: int) -> None:
        super().__init__(job, buffers=buffers)
        self.asked: list[Asked] = []
        self.nodes: dict[int, str] = {}
        self._wanted: set[BatchKey] = set()

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        if isinstance(event, events.MessageReceived) and isinstance(event.message, Welcome):
            self.nodes[event.link] = event.message.node
        instructions = super().handle(event, now_s)
        for instruction in instructions:
            if isinstance(instruction, events.Send) and isinstance(instruction.message, Request):
                node, want = self.nodes[instruction.link], instruction.message.want
                for key in want:
                    self.asked.append(Asked(time.monotonic(), key, node, key not in self._wanted))
                self._wanted.update(want)
        return instructions


def run(orders: RankOrders) -> RankRecord:
    """Take batches until the input ends."""
    cluster, recipe = orders.cluster, Lanes(orders.cluster).recipe
    hello = Hello(
        dataset=DATASET_NAME,
        recipe=recipe,
        seed=SEED,
        window=cluster.window,
        client=f"rank {orders.rank}",
    )
    job = Job(name="bench", hello=hello, share_memory=False, rank=orders.rank)
    session = _RecordingSession(job, buffers=cluster.window + 1)
    transport = Transport(session, Directory(orders.endpoints))
    try:
        batches = transport.wait_for_welcome(TIMEOUT_S).batches
        _print("open")
        indices = rank_indices(batches, orders.rank, cluster.ranks, recipe.last_batch)
        sequence = BatchSequence(0, indices)
        transport.begin(sequence)
        taken: list[tuple[float, int]] = []
        while not select.select([sys.stdin], [], [], 0)[0]:
            batch = transport.take(sequence.key(len(taken)), TIMEOUT_S)
            taken.append((time.monotonic(), batch.valid))
            transport.return_buffers([batch.buffer], before_waiting=True)
        descriptors = len(os.listdir("/proc/self/fd")) - 1
        return RankRecord(
            taken=taken, asked=session.asked, descriptors=descriptors, links=len(session.nodes)
        )
    finally:
        transport.close()


def _print(line: str) -> None:
    print(line, flush=True)


def main(parent: int, orders: RankOrders) -> int:
    """Run as the process; return the exit status."""
    die_with_parent(parent)
    try:
        with asking_any_node(orders.any_node):
            _print(msgspec.json.encode(run(orders)).decode())
    except FeederError as error:
        _print(f"error {error}")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=RankOrders)))
