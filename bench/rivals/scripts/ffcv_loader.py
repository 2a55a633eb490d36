"""FFCV: its loader over the original JPEG bytes, or over the output of its own writer.

No mode of FFCV's writer keeps a JPEG: ``jpg``, ``smart`` and ``proportion`` re-encode at quality
90, ``raw`` stores pixels. So a field of our own writes the file's bytes where FFCV's would write
its re-encoded JPEG; the loader is FFCV's, unchanged.
"""

import random
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip
from ffcv.writer import DatasetWriter
from PIL import Image
from protocol import SIZE_PX, Pixels, Work, serve

_JPEG_MODE = 0  # ffcv.fields.rgb_image.IMAGE_MODES["jpg"]


class _OriginalJpegField(RGBImageField):  # type: ignore[misc]  # ships no annotations
    """Stores files as they are; FFCV reads them as its own JPEGs."""

    def encode(self, destination: Any, source: Any, malloc: Any) -> None:
        jpeg, (width, height) = source
        destination["mode"] = _JPEG_MODE
        destination["width"], destination["height"] = width, height
        destination["data_ptr"], storage = malloc(len(jpeg))
        storage[:] = np.frombuffer(jpeg, np.uint8)


class _Files:
    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return len(self._work.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self._work.paths[index]
        if self._work.variant == "reencoded":
            return Image.open(path).convert("RGB"), self._work.labels[index]
        return (Path(path).read_bytes(), self._work.sizes[index]), self._work.labels[index]


def _write(work: Work) -> str:
    path = work.folder / f"ffcv-{work.variant or 'original'}.beton"
    if not path.exists():
        reencoded = work.variant == "reencoded"
        image = RGBImageField(write_mode="jpg") if reencoded else _OriginalJpegField()
        fields = {"image": image, "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(_Files(work))
    return str(path)


def _batches(work: Work) -> Iterator[Pixels]:
    decoder = RandomResizedCropRGBImageDecoder((SIZE_PX, SIZE_PX))
    handlers = {"image": RGBImageField} if work.variant != "reencoded" else {}
    loader = Loader(
        _write(work),
        batch_size=work.batch,
        num_workers=work.cores,
        os_cache=True,
        order=OrderOption.RANDOM,
        drop_last=True,
        seed=random.randrange(2**31),
        custom_fields=handlers,
        pipelines={"image": [decoder, RandomHorizontalFlip()], "label": [IntDecoder()]},
    )
    while True:
        for images, _labels in loader:
            yield images


if __name__ == "__main__":
    work = Work.from_command_line()
    serve(_batches(work), versions={"ffcv": version("ffcv"), "numba": version("numba")})
