"""WebDataset: shards of the original files as tar, Pillow, PyTorch's DataLoader around them."""

import io
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import webdataset
from pillow_image import make_sample, versions
from protocol import Pixels, Work, die_with_parent, serve

_SHARDS = 16  # enough to go round on any machine


def _write(work: Work) -> list[str]:
    shards = [work.folder / f"webdataset-{number:02}.tar" for number in range(_SHARDS)]
    for number, shard in enumerate(shards):
        if not shard.exists():
            with tarfile.open(shard, "w") as archive:
                for row in range(number, len(work.paths), _SHARDS):
                    _add(archive, f"{row}.jpg", Path(work.paths[row]).read_bytes())
                    _add(archive, f"{row}.cls", str(work.labels[row]).encode())
    return [str(shard) for shard in shards]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _start_worker(_number: int) -> None:
    die_with_parent()
    np.random.seed(torch.initial_seed() % 2**32)


def _batches(work: Work) -> Iterator[Pixels]:
    samples = (
        webdataset.WebDataset(_write(work), shardshuffle=_SHARDS, empty_check=False)
        .shuffle(256)
        .to_tuple("jpg", "cls")
        .map_tuple(make_sample, int)
        .batched(work.batch, partial=False)
        .repeat()
    )
    loader = webdataset.WebLoader(
        samples,
        batch_size=None,
        num_workers=work.processes,
        worker_init_fn=_start_worker,
    )
    for images, _labels in loader:
        yield np.asarray(images)


if __name__ == "__main__":
    work = Work.from_command_line()
    serve(_batches(work), versions={"webdataset": version("webdataset"), **versions()})
