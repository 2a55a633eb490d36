"""What a simulation counts: images by time, requests by owner, and how busy each part is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

BIN_S: Final = 0.1
"""Of the images over time."""


@dataclass(slots=True)
class Tally:
    """Totals since the start; a window is the difference of two copies (``since``)."""

    images: int = 0
    """That ranks have taken."""
    batches: int = 0
    requests: int = 0
    """First requests of a batch."""
    owner_requests: int = 0
    """Those that went to the lane's owner."""
    left_overs: int = 0
    """First requests of batches that have no owner, not counted in ``requests``."""
    hedged: int = 0
    """Further requests of a batch, to another host."""
    made_images: int = 0
    """That workers have made, those made twice included."""
    cold_images: int = 0
    """Of those, read from storage."""
    waited_s: float = 0.0
    """Of all ranks for the next batch."""
    client_cpu_s: float = 0.0
    """CPU time of the clients' session machines, measured while they run here."""
    node_cpu_s: float = 0.0
    """The same of the nodes'."""

    def copy(self) -> "Tally":
        """Return the totals of now."""
        return Tally(**{name: getattr(self, name) for name in self.__slots__})

    def since(self, before: "Tally") -> "Tally":
        """Return what has come since an earlier copy."""
        return Tally(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__slots__}
        )

    @property
    def owner_share(self) -> float:
        """The share of requests that reached their lane's owner."""
        return self.owner_requests / self.requests if self.requests else 0.0


@dataclass(slots=True)
class Timeline:
    """Images that ranks have taken, by bins of BIN_S."""

    bins: list[int] = field(default_factory=list)

    def add(self, at_s: float, images: int) -> None:
        """Count images at a time."""
        number = int(at_s / BIN_S)
        while len(self.bins) <= number:
            self.bins.append(0)
        self.bins[number] += images

    def rates(self, until_s: float, *, smooth: int = 1) -> Sequence[float]:
        """Return images/s of each whole bin, each the mean of ``smooth`` bins that end there."""
        bins = [*self.bins, *([0] * int(until_s / BIN_S))][: int(until_s / BIN_S)]
        return [
            sum(part := bins[max(0, end - smooth) : end]) / (BIN_S * len(part))
            for end in range(1, len(bins) + 1)
        ]
