"""Exact accuracy over a padded evaluation: every sample counted once, by whichever rank had it.

Counting what comes is not enough: padding that is counted, a rank that evaluates everything or one
that drops its last batch changes the result by little and unnoticed. So the ids of what was counted
are kept too, and a result exists only when each sample of the dataset was counted exactly once.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from trainer_client._batch import Batch

TOP: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyResult:
    """Counts over the whole dataset, of all ranks together."""

    images: int
    correct: int  # the label is the first guess
    correct_top5: int  # or among the first five

    @property
    def top1(self) -> float:
        """Share of the images whose label is the first guess."""
        return self.correct / self.images

    @property
    def top5(self) -> float:
        """Share of the images whose label is among the first five guesses."""
        return self.correct_top5 / self.images


class Accuracy:
    """Adds up one evaluation, without waiting for the device; make a new one for each.

    It keeps 4 bytes for each sample of the dataset on the host.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        """Start at nothing, for a dataset of ``samples`` (``loader.samples``)."""
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._times = torch.zeros(samples, dtype=torch.int32)  # each sample was counted

    def add(self, logits: torch.Tensor, batch: Batch) -> None:
        """Count a batch: ``logits`` (N, classes) are what the model made of its images.

        Raises ConfigError when the batch is of a larger dataset.
        """
        self._counts += count_correct(logits, batch.labels)
        sample_ids = batch.sample_ids[: batch.valid]
        samples = len(self._times)
        if batch.valid and int(sample_ids.max()) >= samples:
            raise ConfigError(
                f"sample {int(sample_ids.max())} is none of the {samples} that this accuracy is "
                "of: make it with the samples of the loader that the batches come from"
            )
        self._times.index_add_(0, sample_ids, torch.ones(batch.valid, dtype=torch.int32))

    def result(self) -> AccuracyResult:
        """Return the counts of all ranks; with torch.distributed, every rank must call this.

        Raises ConfigError, in every rank, unless each sample was counted exactly once.
        """
        times, counts = self._times, self._counts
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # NCCL adds up what is on the device only. The clones let ranks go on counting.
            times, counts = times.to(counts.device, copy=True), counts.clone()
            dist.all_reduce(times)
            dist.all_reduce(counts)
            times = times.cpu()
        wrong = (times != 1).nonzero().flatten()
        if len(wrong):
            first = int(wrong[0])
            raise ConfigError(
                f"this evaluation is not exact: {int((times == 0).sum())} of {len(times)} samples "
                f"were not counted and {int((times > 1).sum())} more than once (sample {first}: "
                f"{int(times[first])} times); pad the last batch, as split='val' does, give every "
                "rank its share, and add every batch of one epoch"
            )
        correct, correct_top5 = counts.tolist()
        return AccuracyResult(images=len(times), correct=correct, correct_top5=correct_top5)


def count_correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return int64 (2,): rows whose label is the first guess, and those where in the first 5.

    ``logits`` is (N, classes), ``labels`` int64 (N,); padding has a negative label, which no guess
    equals.
    """
    guesses = logits.topk(min(TOP, logits.shape[1]), dim=1).indices
    hits = guesses == labels[:, None]
    return torch.stack([hits[:, 0].sum(), hits.any(dim=1).sum()])
