"""Rate limit for messages: a token bucket for each peer, refilled by time and by delivered batches.

Every message costs its sender tokens, in proportion to the time to handle it. Delivered chunks and
batches earn tokens, so a client that trains earns more than it spends. A peer that only sends runs
out; its messages are then dropped, which costs next to nothing, until the bucket refills. Pure: the
caller passes the time.

Invariant: a peer has between -_DEBT_MAX and BURST tokens; at most _PEERS_MAX peers are remembered.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from feeder.wire.messages import (
    BlobsRequest,
    ClientMessage,
    Hello,
    HostStatsRequest,
    NamesRequest,
    Request,
    SourcesRequest,
    StatsRequest,
)

BURST: Final = 256.0
TOKENS_A_S: Final = 64.0
"""A Hello every half a second, which is how often a client retries, and some more."""

EARNED: Final = 8.0
"""By each chunk, or lent batch: a client sends at most two messages for a batch."""

MALFORMED_COST: Final = 4.0
_COSTS: Final[dict[type, float]] = {
    Hello: 16.0,  # memory, and a message to each worker
    StatsRequest: 8.0,
    HostStatsRequest: 32.0,  # a report of all node processes, which may be long
}
_DEBT_MAX: Final = 64.0
_PEERS_MAX: Final = 8192
_REPORT_INTERVAL_S: Final = 1.0


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    filled_s: float
    reported_s: float = float("-inf")


def cost_of(message: ClientMessage) -> float:
    match message:
        case NamesRequest():
            return 1.0 + len(message.sample_ids) / 32
        case SourcesRequest():
            return 1.0 + len(message.sample_ids) / 512
        case BlobsRequest():
            return 1.0 + len(message.sample_ids) / 64
        case Request():
            return 1.0 + 0.25 * len(message.want)
        case _:
            return _COSTS.get(type(message), 1.0)


class FairShare:
    """The token buckets of all peers."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[bytes, _TokenBucket] = OrderedDict()

    def allows(self, peer: bytes, now_s: float) -> bool:
        """Whether a message of this peer may be handled now; its bucket is refilled first."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            if len(self._buckets) >= _PEERS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[peer] = _TokenBucket(BURST, now_s)
        else:
            self._buckets.move_to_end(peer)
        if now_s > bucket.filled_s:
            earned = (now_s - bucket.filled_s) * TOKENS_A_S
            bucket.tokens = min(BURST, bucket.tokens + earned)
            bucket.filled_s = now_s
        return bucket.tokens > 0

    def charge(self, peer: bytes, cost: float) -> None:
        """Charge a peer for a message; -EARNED for a chunk or lent batch that it gets."""
        bucket = self._buckets.get(peer)
        if bucket is not None:
            bucket.tokens = min(BURST, max(-_DEBT_MAX, bucket.tokens - cost))

    def is_report_due(self, peer: bytes, now_s: float) -> bool:
        """Whether to report to a peer that its message is dropped; True at most once a second."""
        bucket = self._buckets[peer]
        if now_s - bucket.reported_s < _REPORT_INTERVAL_S:
            return False
        bucket.reported_s = now_s
        return True
