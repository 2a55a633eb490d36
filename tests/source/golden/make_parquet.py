"""Writes the Parquet files beside it with Hugging Face's datasets; see README.md.

Tests do not run it.
"""

import contextlib
import hashlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Picture

HERE = Path(__file__).parent
NAMES = ["cat", "dog", "röd räv"]
LABELS = [2, 0, 1, 0]


def jpeg(number: int) -> bytes:
    """Return a JPEG of 16 + number by 12 pixels."""
    shades = np.arange(12 * (16 + number) * 3, dtype=np.uint32) * (number + 5) % 256
    out = io.BytesIO()
    pixels = shades.astype(np.uint8).reshape(12, -1, 3)
    Picture.fromarray(pixels).save(out, "JPEG", quality=50)
    return out.getvalue()


def main() -> None:
    images = [jpeg(number) for number in range(len(LABELS))]
    expected = [hashlib.sha256(image).hexdigest() for image in images]
    (HERE / "parquet.json").write_text(json.dumps(expected, indent=1) + "\n")
    named = [{"bytes": data, "path": f"train/{n}.jpg"} for n, data in enumerate(images)]

    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})
    rows = {"image": named, "label": LABELS}
    Dataset.from_dict(rows, features).to_parquet(HERE / "classes.parquet", batch_size=3)

    features = Features(
        {"img": Image(), "tags": List(ClassLabel(names=NAMES)), "id": Value("int32")}
    )
    rows = {"img": [{"bytes": data, "path": None} for data in images]}
    rows |= {"tags": [[], [0, 2], [1], [2, 1, 0]], "id": [7, 8, 9, 10]}
    Dataset.from_dict(rows, features).to_parquet(HERE / "tags.parquet")

    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})
    rows = {"image": [each["path"] for each in named], "label": LABELS}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("train").mkdir()
        for each in named:
            Path(each["path"]).write_bytes(each["bytes"])
        Dataset.from_dict(rows, features).to_parquet(HERE / "paths.parquet")


if __name__ == "__main__":
    main()
