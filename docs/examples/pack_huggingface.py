"""Packs a split of a Hugging Face dataset, from the Hub or from a folder with its files.

    python pack_huggingface.py uoft-cs/cifar10 cifar10-train --image img
    python pack_huggingface.py uoft-cs/cifar10 cifar10-test --image img --split test \
        --classes-of cifar10-train

Image files are packed as the dataset stores them, without decoding them before. After an
interruption the same command resumes. A dataset that is a folder of Parquet files anyway takes
``feeder pack FOLDER DST`` instead, which copies nothing.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import datasets

import feeder

parser = argparse.ArgumentParser()
parser.add_argument("name", help="of the dataset on the Hub, or a folder")
parser.add_argument("dataset", help="the folder to pack into")
parser.add_argument("--split", default="train")
parser.add_argument("--image", default="image", help="the column with the images")
parser.add_argument("--label", default="label", help="the column with the labels")
parser.add_argument("--streaming", action="store_true", help="do not download it first")
parser.add_argument("--classes-of", help="packed dataset of the training split")
options = parser.parse_args()

rows = datasets.load_dataset(options.name, split=options.split, streaming=options.streaming)
rows = rows.cast_column(options.image, datasets.Image(decode=False))
label = rows.features[options.label]


def read_samples() -> Iterator[tuple[str, bytes, Any]]:
    """Yield key, image file and label of each row; rows have no names, so keys are numbers."""
    for number, row in enumerate(rows):
        image = row[options.image]["bytes"]
        if image is None:  # the dataset refers to files
            with open(row[options.image]["path"], "rb") as file:
                image = file.read()
        yield f"{number:08d}", image, row[options.label]


packed = feeder.pack_samples(
    read_samples(),
    options.dataset,
    class_names=label.names if isinstance(label, datasets.ClassLabel) else None,
    classes_of=options.classes_of,
)
print(f"{packed.samples:,} samples of {len(packed.classes)} classes in {packed.path}")
