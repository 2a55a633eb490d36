"""A progress line that shows how long training waits for batches."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from feeder.errors import ConfigError
from trainer_client._statistics import EpochTimes

AnyBatch = TypeVar("AnyBatch")


def show_progress(
    batches: Iterable[AnyBatch], *, first: int, steps: int, read: Callable[[], EpochTimes]
) -> Iterator[AnyBatch]:
    """Return the batches of an epoch of ``steps``, from step ``first`` on, under a tqdm line.

    ``read`` returns the times so far. Raises ConfigError where tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ConfigError(
            "progress() draws its line with tqdm, which is not installed here: pip install tqdm"
        ) from None
    line = partial(tqdm, total=steps, initial=first, unit="step")
    return _show(batches, line, read)


def _show(
    batches: Iterable[AnyBatch], make_line: Callable[[], Any], read: Callable[[], EpochTimes]
) -> Iterator[AnyBatch]:
    with make_line() as bar:  # drawn when the first batch is wanted
        for batch in batches:
            yield batch
            if bar.update():  # it was redrawn
                bar.set_postfix_str(_describe(read()), refresh=False)
        bar.set_postfix_str(_describe(read()))


def _describe(times: EpochTimes) -> str:
    """Return what fits beside the bar on a line of 80 columns."""
    return f"{times.images_per_s:,.0f} images/s, waits {times.wait_share:.0%}"
