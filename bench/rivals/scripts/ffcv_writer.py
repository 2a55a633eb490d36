"""FFCV: its DatasetWriter with one worker, as its ImageNet script calls it, or all as JPEGs.

``imagenet`` is ``write_imagenet.sh 500 0.50 90`` of ffcv-imagenet: at most 500 px, half of the
images as JPEGs of quality 90 and half as pixels. ``jpg`` keeps the size.
"""

from importlib.metadata import version
from typing import Any

from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from PIL import Image
from protocol import Work, serve_writing

_OPTIONS: dict[str, dict[str, Any]] = {
    "imagenet": {"write_mode": "proportion", "max_resolution": 500, "compress_probability": 0.5},
    "jpg": {"write_mode": "jpg"},
}


class _Images:
    """As torchvision's ImageFolder."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return len(self._work.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self._work.paths[index]) as image:
            return image.convert("RGB"), self._work.labels[index]


def _write(work: Work) -> dict[str, str]:
    image = RGBImageField(jpeg_quality=90, **_OPTIONS[work.variant])
    fields = {"image": image, "label": IntField()}
    DatasetWriter(str(work.folder), fields, num_workers=1).from_indexed_dataset(_Images(work))
    return {"ffcv": version("ffcv")}


if __name__ == "__main__":
    serve_writing(_write)
