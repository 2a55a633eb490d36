"""PyTorch's DataLoader: with torchvision's decode_jpeg and transforms v2, or with Pillow."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from protocol import SIZE_PX, Pixels, Work, die_with_parent, serve
from torch.utils.data import DataLoader, Dataset


class _PillowFiles(Dataset[Any]):
    def __init__(self, work: Work) -> None:
        from pillow_image import make_sample

        self._work, self._make = work, make_sample

    def __len__(self) -> int:
        return len(self._work.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self._make(self._work.paths[index])), self._work.labels[index]


class _TorchvisionFiles(Dataset[Any]):
    def __init__(self, work: Work) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file
        from torchvision.transforms import v2

        self._work = work
        self._decode = lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
        self._transform = v2.Compose(
            [
                v2.RandomResizedCrop(SIZE_PX, antialias=work.variant != "plain"),
                v2.RandomHorizontalFlip(),
            ]
        )

    def __len__(self) -> int:
        return len(self._work.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._decode(self._work.paths[index])
        return self._transform(image), self._work.labels[index]


def _start_worker(_number: int) -> None:
    die_with_parent()
    np.random.seed(torch.initial_seed() % 2**32)


def _batches(work: Work) -> Iterator[Pixels]:
    files = _PillowFiles(work) if work.variant == "pillow" else _TorchvisionFiles(work)
    loader = DataLoader(
        files,
        batch_size=work.batch,
        shuffle=True,
        drop_last=True,
        num_workers=work.processes,
        persistent_workers=work.processes > 0,
        worker_init_fn=_start_worker,
    )
    while True:
        for images, _labels in loader:
            yield images.numpy()


def _versions(work: Work) -> dict[str, str]:
    if work.variant == "pillow":
        from pillow_image import versions

        return {"torch": torch.__version__, **versions()}
    import torchvision

    return {"torch": torch.__version__, "torchvision": torchvision.__version__}


if __name__ == "__main__":
    work = Work.from_command_line()
    torch.set_num_threads(1 if work.processes else work.cores)
    serve(_batches(work), versions=_versions(work))
