"""Exact accuracy over a padded evaluation: every sample counted once, over all ranks.

Padding that is counted, a rank that evaluates everything or one that drops its last batch changes
the result only a little and goes unnoticed. So the ids of counted samples are kept, and a result
exists only when each sample of the dataset was counted exactly once.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from feeder.errors import ConfigError
from feeder.plan.labels import NO_LABEL
from trainer_client._batch import Batch

TOP: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyResult:
    """Counts over the whole dataset and all ranks."""

    images: int
    correct: int  # label is the top guess
    correct_top5: int  # label is among the top five guesses

    @property
    def top1(self) -> float:
        """Share of the images with the label as top guess."""
        return self.correct / self.images

    @property
    def top5(self) -> float:
        """Share of the images with the label among the top five guesses."""
        return self.correct_top5 / self.images


class Accuracy:
    """Adds up one evaluation, without waiting for the device; make a new one for each.

    For datasets of one class a sample (``loader.dataset.label_kind`` is "index"). Takes 4 bytes of
    host memory for each sample of the dataset.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        """Begin an evaluation of a dataset of ``samples`` (``loader.samples``)."""
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)  # the last: without label
        self._times = torch.zeros(samples, dtype=torch.int32)  # how often each was counted

    def add(self, logits: torch.Tensor, batch: Batch[torch.Tensor]) -> None:
        """Count a batch; ``logits`` (N, classes) are the model's output for its images.

        Raises ConfigError when the batch is of a larger dataset, or has several labels a sample.
        """
        if batch.labels.is_floating_point():
            raise ConfigError(
                f"Accuracy counts one class a sample, these labels are {tuple(batch.labels.shape)} "
                'floats (label_kind "multi" or "float"): use a metric for such labels, from '
                "torchmetrics for example, on the first batch.valid rows"
            )
        self._counts[:2] += count_correct(logits, batch.labels)
        self._counts[2] += (batch.labels == NO_LABEL).sum()
        sample_ids = batch.sample_ids[: batch.valid]
        samples = len(self._times)
        if batch.valid and int(sample_ids.max()) >= samples:
            raise ConfigError(
                f"sample {int(sample_ids.max())} is not in the dataset of {samples} samples: pass "
                "Accuracy the samples of the loader that the batches come from"
            )
        self._times.index_add_(0, sample_ids, torch.ones(batch.valid, dtype=torch.int32))

    def result(self) -> AccuracyResult:
        """Return the counts of all ranks; with torch.distributed, every rank must call this.

        Raises ConfigError, in every rank, unless each sample was counted exactly once, and for a
        dataset without labels.
        """
        times, counts = self._times, self._counts
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # NCCL reduces device tensors only. The copies let ranks continue counting.
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
        correct, correct_top5, unlabelled = counts.tolist()
        if unlabelled:
            raise ConfigError(
                f'{unlabelled} samples have no label (label_kind "none"), so there is no accuracy: '
                "evaluate on a dataset that was packed with labels"
            )
        return AccuracyResult(images=len(times), correct=correct, correct_top5=correct_top5)


def count_correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return int64 (2,): rows with the label as top guess, and among the top 5.

    ``logits`` is (N, classes), ``labels`` int64 (N,); no guess equals padding's negative label.
    """
    guesses = logits.topk(min(TOP, logits.shape[1]), dim=1).indices
    hits = guesses == labels[:, None]
    return torch.stack([hits[:, 0].sum(), hits.any(dim=1).sum()])
