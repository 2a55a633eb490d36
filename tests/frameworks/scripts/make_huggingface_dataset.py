"""Writes a Hugging Face dataset as its library does: FOLDER/train.parquet and test.parquet.

SOURCE/SPLIT/CLASS/FILE are the images; files in sorted order are the rows.
"""

import sys
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
names = sorted({path.name for path in source.glob("*/*")})
features = Features({"image": Image(decode=False), "label": ClassLabel(names=names)})
for split in ("train", "test"):
    paths = sorted((source / split).glob("*/*"), key=lambda path: path.name)
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
        "label": [names.index(path.parent.name) for path in paths],
    }
    Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
