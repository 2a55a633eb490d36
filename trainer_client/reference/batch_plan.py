"""How a step's images are divided: ranks, micro-batches, and what a loader is asked for.

A step takes ``global_batch`` images: ``ranks`` × ``accumulation`` micro-batches of ``batch_size``.
Micro-batch m of rank r in step t is batch (t · accumulation + m) · ranks + r of the epoch. So step
t has the same samples for every number of ranks and micro-batches, as long as the order is the same
(``order_batch_size`` of the data's recipe, which a resumed job keeps).
"""

from dataclasses import dataclass
from typing import Final, Self

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import TrainingRecipe

DEFAULT_BATCH_SIZE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The numbers of one job; ``batch_size`` images of each rank go through the model at once."""

    global_batch: int
    batch_size: int
    accumulation: int
    ranks: int

    @classmethod
    def make(cls, recipe: TrainingRecipe, batch_size: int, ranks: int) -> Self:
        """Divide the recipe's global batch; ``batch_size`` 0 lets it follow from the others.

        Raises ConfigError where the numbers do not divide each other.
        """
        if batch_size < 0:
            raise ConfigError(f"batch_size must be a whole number, 0 or more, got {batch_size}")
        total, parts = recipe.global_batch, recipe.accumulation
        if not total:
            total = (batch_size or DEFAULT_BATCH_SIZE) * ranks * (parts or 1)
        if not parts:
            parts = cls._find_accumulation(total, batch_size, ranks)
        share, remainder = divmod(total, ranks * parts)
        if remainder or not share:
            raise ConfigError(
                f"accumulation {parts} on {_count(ranks, 'rank')} does not divide the global batch "
                f"of {total}: make --global-batch a multiple of {ranks * parts}, or change "
                "--accumulation"
            )
        if batch_size and batch_size != share:
            raise ConfigError(
                f"a global batch of {total} on {_count(ranks, 'rank')} with accumulation {parts} "
                f"has micro-batches of {share}, not of batch_size {batch_size}: leave out "
                "--accumulation or --batch-size"
            )
        return cls(global_batch=total, batch_size=share, accumulation=parts, ranks=ranks)

    @staticmethod
    def _find_accumulation(total: int, batch_size: int, ranks: int) -> int:
        if not batch_size:
            return 1
        parts, remainder = divmod(total, ranks * batch_size)
        if remainder or not parts:
            raise ConfigError(
                f"batch_size {batch_size} on {_count(ranks, 'rank')} does not divide the global "
                f"batch of {total}: use a --batch-size that divides {total / ranks:g}, or leave it "
                "out"
            )
        return parts

    def __str__(self) -> str:
        """Return the numbers for the log: ranks, micro-batches and images of a step."""
        parts = f"{self.accumulation} x " if self.accumulation > 1 else ""
        return f"{self.ranks} x {parts}{self.batch_size} images a step"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
