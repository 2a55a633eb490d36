"""The iterator over one epoch of a loader."""

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Final, Generic, TypeVar

from feeder.errors import ConfigError

AnyBatch = TypeVar("AnyBatch")

_ONE_AT_A_TIME: Final = "use one iterator at a time, and a second loader for a second pass"


class EpochIterator(Generic[AnyBatch]):
    """The batches of one epoch, which begins when the first is taken; ``iter(loader)`` makes it.

    It ends when it is exhausted or closed, and when a newer iterator of the loader begins.
    """

    def __init__(
        self,
        begin: "Callable[[EpochIterator[AnyBatch]], tuple[int, range]]",
        take: Callable[[int, int], AnyBatch],
        users: list[int],
    ) -> None:
        """Take two methods of the loader, and the thread that takes a batch of it now, if any.

        ``begin(iterator)`` begins the next epoch and returns it with the indices of its batches.
        ``take(epoch, index)`` waits for a batch.
        """
        self._begin = begin
        self._take = take
        self._users = users
        self._indices = range(0)  # not taken yet
        self.epoch: int | None = None
        """The number of the epoch; None until the first batch is taken."""
        self.closed_because: str | None = None
        """The reason why no batch can be taken before the epoch is over; None while one can."""

    @property
    def is_over(self) -> bool:
        """Whether the epoch's last batch was returned, or the iterator was closed."""
        return self.closed_because is not None or (self.epoch is not None and not self._indices)

    def __iter__(self) -> "Iterator[AnyBatch]":
        """Return the iterator itself."""
        return self

    def __next__(self) -> AnyBatch:
        """Return the next batch; PeerError when it does not arrive within the loader's timeout."""
        thread, users = get_ident(), self._users
        if users and users[0] != thread:
            raise ConfigError(
                f"a batch of this loader is being taken in another thread: {_ONE_AT_A_TIME}"
            )
        users[:] = (thread,)  # no other thread and no signal comes between the check and this
        try:
            if self.closed_because is not None:
                raise ConfigError(self.closed_because)
            if self.epoch is None:
                self.epoch, self._indices = self._begin(self)
            if not self._indices:
                raise StopIteration
            try:
                batch = self._take(self.epoch, self._indices[0])
            except BaseException:
                self.close()
                raise
            self._indices = self._indices[1:]  # only now: while it waits, the epoch is not over
            return batch
        finally:
            users.clear()

    def close(self) -> None:
        """End the iterator; the rest of the epoch is dropped."""
        epoch = "an epoch that has not begun" if self.epoch is None else f"epoch {self.epoch}"
        self.closed_because = self.closed_because or f"this iterator of {epoch} was closed"

    def supersede(self) -> None:
        """End the iterator because a newer one of the same loader begins."""
        self.closed_because = (
            f"this iterator of epoch {self.epoch} ended when a newer one of its loader began: "
            f"{_ONE_AT_A_TIME}"
        )
