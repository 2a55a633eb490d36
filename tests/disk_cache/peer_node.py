"""A peer for tests: answers requests for blobs, and for its report, as told."""

import socket
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from feeder.metrics.report import HostReport
from feeder.wire.messages import (
    Blobs,
    BlobsRequest,
    ClientMessage,
    HostStats,
    HostStatsRequest,
    Refused,
    encode,
)
from tests.support.fake_node import FakeNode
from tests.support.host_reports import healthy

Answer = Callable[[BlobsRequest], list[bytes] | None]


class PeerNode(FakeNode):
    """Has some samples of the dataset with this content, and refuses others."""

    def __init__(
        self,
        content: str,
        blobs: Mapping[int, bytes],
        *,
        name: str = "",
        endpoint: str | None = None,
    ) -> None:
        self.blobs = dict(blobs)
        self.name = name
        self.asked: list[int] = []
        self.reports = 0
        self.answer: Answer = self.send_blobs
        """Returns the frames of an answer, None for none."""
        super().__init__(content=content, endpoint=endpoint)

    def send_blobs(self, request: BlobsRequest) -> list[bytes]:
        if request.content != self.content:
            text = f"no dataset with content fingerprint {request.content} is served here"
            return [encode(Refused(code="unknown-dataset", message=text))]
        found = [self.blobs.get(sample, b"") for sample in request.sample_ids]
        return [encode(Blobs(sizes=tuple(map(len, found)))), b"".join(found)]

    def report(self) -> HostReport:
        report = healthy()
        (dataset,) = report.datasets
        served = replace(dataset, content=self.content)
        node, *_ = report.nodes
        assert node.now is not None
        nodes = (replace(node, now=replace(node.now, name=f"{self.name}/0")),)
        host = socket.gethostname()
        return replace(report, datasets=(served,), name=self.name, host=host, nodes=nodes)

    def _handle(self, peer: bytes, message: ClientMessage) -> None:
        super()._handle(peer, message)
        frames = None
        if isinstance(message, BlobsRequest):
            self.asked += message.sample_ids
            frames = self.answer(message)
        elif isinstance(message, HostStatsRequest):
            self.reports += 1
            frames = [encode(HostStats(report=self.report()))]
        if frames is not None:
            self.send(frames, peer)
