"""The iterator over one epoch of a loader."""

from collections.abc import Callable, Iterator

from feeder.errors import ConfigError
from trainer_client._batch import Batch


class EpochIterator:
    """The batches of one epoch. It ends when exhausted, closed, or when a newer one starts."""

    def __init__(self, take: Callable[[int, int], Batch], epoch: int, indices: range) -> None:
        """``take(epoch, index)``, a method of the loader, waits for a batch."""
        self.epoch = epoch
        self._take = take
        self._indices = indices  # not taken yet
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether the epoch's last batch was returned, or the iterator was closed."""
        return not self._indices

    def __iter__(self) -> Iterator[Batch]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch; PeerError when it does not arrive within the loader's timeout."""
        if self._is_closed:
            raise ConfigError(f"this iterator of epoch {self.epoch} was closed")
        if not self._indices:
            raise StopIteration
        try:
            batch = self._take(self.epoch, self._indices[0])
        except BaseException:
            self.close()
            raise
        self._indices = self._indices[1:]  # only now: while it waits, the epoch is not over
        return batch

    def close(self) -> None:
        """End the iterator; the rest of the epoch is dropped."""
        self._indices, self._is_closed = range(0), True
