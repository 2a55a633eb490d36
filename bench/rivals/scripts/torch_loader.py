"""PyTorch's DataLoader, by variant:

    torchvision    files, by torchvision's decode_jpeg and transforms v2
    pillow         files, by Pillow
    webdataset     tars of the original bytes, by Pillow
    streaming      MosaicML Streaming's shards of the original bytes, by Pillow

Tars and shards are written when the script starts.
"""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from protocol import SIZE_PX, Pixels, Work, die_with_parent, serve
from torch.utils.data import DataLoader, Dataset

_SHARDS = 16  # enough to go round on any machine


class _Files(Dataset[Any]):
    def __init__(self, work: Work) -> None:
        self._work = work
        if work.variant == "pillow":
            from pillow_image import make_sample

            self._make: Any = lambda path: torch.from_numpy(make_sample(path))
            return
        from torchvision.io import ImageReadMode, decode_jpeg, read_file
        from torchvision.transforms import v2

        transform = v2.Compose(
            [v2.RandomResizedCrop(SIZE_PX, antialias=True), v2.RandomHorizontalFlip()]
        )
        self._make = lambda path: transform(decode_jpeg(read_file(path), mode=ImageReadMode.RGB))

    def __len__(self) -> int:
        return len(self._work.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._make(self._work.paths[index]), self._work.labels[index]


def _streaming(work: Work) -> Any:
    from copying_writer import write_mds
    from pillow_image import make_sample
    from streaming import StreamingDataset

    class Images(StreamingDataset):  # type: ignore[misc]  # ships no annotations
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return make_sample(sample["jpeg"]), sample["label"]

    folder = work.folder / "streaming"
    if not folder.exists():
        write_mds(zip(work.paths, work.labels, strict=True), folder)
    return Images(local=str(folder), batch_size=work.batch, shuffle=True)


def _webdataset(work: Work) -> Any:
    import webdataset
    from copying_writer import write_webdataset
    from pillow_image import make_sample

    folder = work.folder / "webdataset"
    if not folder.exists():
        images = zip(work.paths, work.labels, strict=True)
        write_webdataset(images, folder, maxcount=-(-len(work.paths) // _SHARDS))
    shards = [str(path) for path in sorted(folder.iterdir())]
    samples = (
        webdataset.WebDataset(shards, shardshuffle=_SHARDS, empty_check=False)
        .shuffle(256)
        .to_tuple("jpg", "cls")
        .map_tuple(make_sample, int)
        .batched(work.batch, partial=False)
        .repeat()
    )
    return webdataset.WebLoader(
        samples, batch_size=None, num_workers=work.processes, worker_init_fn=_start_worker
    )


def _start_worker(_number: int) -> None:
    die_with_parent()
    np.random.seed(torch.initial_seed() % 2**32)


def _batches(work: Work) -> Iterator[Pixels]:
    if work.variant == "webdataset":
        loader = _webdataset(work)
    else:
        is_streaming = work.variant == "streaming"
        loader = DataLoader(
            _streaming(work) if is_streaming else _Files(work),
            batch_size=work.batch,
            shuffle=None if is_streaming else True,  # it shuffles itself
            drop_last=True,
            num_workers=work.processes,
            persistent_workers=work.processes > 0,
            worker_init_fn=_start_worker,
        )
    while True:
        for images, _labels in loader:
            yield np.asarray(images)


def _versions(variant: str) -> dict[str, str]:
    if variant == "torchvision":
        return {"torch": torch.__version__, "torchvision": version("torchvision")}
    from pillow_image import VERSIONS

    if variant == "pillow":
        return {"torch": torch.__version__, **VERSIONS}
    package = "mosaicml-streaming" if variant == "streaming" else variant
    return {package: version(package), **VERSIONS}


if __name__ == "__main__":
    work = Work.from_command_line()
    if work.variant in ("torchvision", "pillow"):
        torch.set_num_threads(1 if work.processes else work.cores)
    serve(_batches(work), versions=_versions(work.variant))
