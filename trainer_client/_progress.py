"""A progress line that shows who waits for whom."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from feeder.errors import ConfigError
from trainer_client._statistics import EpochTimes

AnyBatch = TypeVar("AnyBatch")


def show_progress(
    batches: Iterable[AnyBatch], *, first: int, steps: int, read: Callable[[], EpochTimes]
) -> Iterator[AnyBatch]:
    """Yield the batches of an epoch of ``steps``, from step ``first`` on, under a tqdm line.

    ``read`` returns the times so far. Raises ConfigError where tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ConfigError(
            "progress() draws its line with tqdm, which is not installed here: pip install tqdm"
        ) from None
    with tqdm(total=steps, initial=first, unit="step") as bar:
        for batch in batches:
            yield batch
            if bar.update():  # it was drawn anew
                times = read()
                rate = f"{times.images_per_s:,.0f} images/s"
                bar.set_postfix_str(f"{rate}, waits {times.wait_share:.0%}", refresh=False)
        bar.set_postfix_str(str(read()).partition("; ")[2])
