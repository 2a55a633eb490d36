"""MosaicML Streaming: MDS shards of the original bytes, Pillow, PyTorch's DataLoader."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pillow_image import make_sample, versions
from protocol import Pixels, Work, die_with_parent, serve
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader


class _Images(StreamingDataset):  # type: ignore[misc]  # ships no annotations
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return make_sample(sample["jpeg"]), sample["label"]


def _write(work: Work) -> str:
    folder = work.folder / "streaming"
    if not folder.exists():
        columns = {"jpeg": "bytes", "label": "int"}
        with MDSWriter(out=str(folder), columns=columns) as writer:
            for path, label in zip(work.paths, work.labels, strict=True):
                writer.write({"jpeg": Path(path).read_bytes(), "label": label})
    return str(folder)


def _start_worker(_number: int) -> None:
    die_with_parent()
    np.random.seed(torch.initial_seed() % 2**32)


def _batches(work: Work) -> Iterator[Pixels]:
    samples = _Images(local=_write(work), batch_size=work.batch, shuffle=True)
    loader = DataLoader(
        samples,
        batch_size=work.batch,
        drop_last=True,
        num_workers=work.processes,
        persistent_workers=work.processes > 0,
        worker_init_fn=_start_worker,
    )
    while True:
        for images, _labels in loader:
            yield images.numpy()


if __name__ == "__main__":
    work = Work.from_command_line()
    versions_used = {"mosaicml-streaming": version("mosaicml-streaming"), **versions()}
    serve(_batches(work), versions=versions_used)
