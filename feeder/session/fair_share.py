"""How much of the node process's attention a peer gets: as much as the batches that it takes earn.

Every message costs its sender tokens, about as many as handling it takes time; what is handed over
to it earns some back, and time gives everybody a few. A client that trains earns more than it
spends. Who only talks runs out: then its messages are dropped, which costs next to nothing, until
time has given it a token again. Pure: the caller brings the clock.

Invariant: a peer has between -_DEBT_MAX and BURST tokens; at most _PEERS_MAX peers are remembered.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from feeder.wire.messages import ClientMessage, Hello, Request, StatsRequest

BURST: Final = 256.0
TOKENS_A_S: Final = 64.0
"""A Hello every half a second, which is how often a client tries again, and some more."""

EARNED: Final = 8.0
"""By each chunk, or batch that is lent: a client says two things for a batch at most."""

MALFORMED_COST: Final = 4.0
_DEBT_MAX: Final = 64.0
_PEERS_MAX: Final = 8192
_TELL_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    filled_s: float
    told_s: float = float("-inf")


def cost_of(message: ClientMessage) -> float:
    """Return what a message costs its sender."""
    match message:
        case Hello():
            return 16.0  # memory, and a message to each worker
        case StatsRequest():
            return 8.0
        case Request():
            return 1.0 + 0.25 * len(message.want)
        case _:
            return 1.0


class FairShare:
    """The tokens of all peers."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[bytes, _TokenBucket] = OrderedDict()

    def may_speak(self, peer: bytes, now_s: float) -> bool:
        """Whether a message of this peer is to be looked at."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            if len(self._buckets) >= _PEERS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[peer] = _TokenBucket(BURST, now_s)
        else:
            self._buckets.move_to_end(peer)
        if now_s > bucket.filled_s:
            given = (now_s - bucket.filled_s) * TOKENS_A_S
            bucket.tokens = min(BURST, bucket.tokens + given)
            bucket.filled_s = now_s
        return bucket.tokens > 0

    def charge(self, peer: bytes, cost: float) -> None:
        """Take what a message costs from its sender."""
        bucket = self._buckets.get(peer)
        if bucket is not None:
            bucket.tokens = max(-_DEBT_MAX, bucket.tokens - cost)

    def earn(self, peer: bytes) -> None:
        """Give a peer what it earns by taking a chunk or a batch."""
        bucket = self._buckets.get(peer)
        if bucket is not None:
            bucket.tokens = min(BURST, bucket.tokens + EARNED)

    def is_to_be_told(self, peer: bytes, now_s: float) -> bool:
        """Whether it is time to tell a peer that it may not speak; True at most once a second."""
        bucket = self._buckets.get(peer)
        if bucket is None or now_s - bucket.told_s < _TELL_PAUSE_S:
            return False
        bucket.told_s = now_s
        return True
