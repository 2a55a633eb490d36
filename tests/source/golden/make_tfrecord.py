"""Writes the TFRecord files beside it with TensorFlow; see README.md. Tests do not run it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
CLASSES = {1: ("n01440764", "tench, Tinca tinca"), 2: ("n01443537", "goldfish")}
CLASSES[1000] = ("n15075141", "toilet tissue, toilet paper, bathroom tissue")


def jpeg(number: int) -> bytes:
    """Return a JPEG of 16 + number by 12 pixels."""
    shades = np.arange(12 * (16 + number) * 3, dtype=np.uint32) * (number + 3) % 256
    return tf.io.encode_jpeg(shades.astype(np.uint8).reshape(12, -1, 3), quality=50).numpy()


def texts(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def integers(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def imagenet(number: int, label: int, image: bytes) -> tf.train.Example:
    """Return an example with the features that TensorFlow's build_imagenet_data.py writes."""
    synset, text = CLASSES[label]
    features = {
        "image/height": integers(12),
        "image/width": integers(16 + number),
        "image/colorspace": texts(b"RGB"),
        "image/channels": integers(3),
        "image/class/label": integers(label),
        "image/class/synset": texts(synset.encode()),
        "image/class/text": texts(text.encode()),
        "image/object/bbox/xmin": floats(0.25, 0.5),
        "image/object/bbox/xmax": floats(0.75, 1.0),
        "image/object/bbox/ymin": floats(0.0, 0.125),
        "image/object/bbox/ymax": floats(0.5, 1.0),
        "image/object/bbox/label": integers(label, label),
        "image/format": texts(b"JPEG"),
        "image/filename": texts(f"{synset}_{number}.JPEG".encode()),
        "image/encoded": texts(image),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def kinds(number: int, image: bytes) -> tf.train.Example:
    """Return an example with labels of every kind, in fields of its own."""
    features = {
        "img": texts(image),
        "several": integers(*range(number)),
        "negative": integers(-number),
        "floats": floats(number / 4, -number),
        "text": texts(("é" * number).encode()),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def main() -> None:
    labels = [1, 1000, 2, 1]
    images = [jpeg(number) for number in range(len(labels))]
    expected = [hashlib.sha256(image).hexdigest() for image in images]
    (HERE / "tfrecord.json").write_text(json.dumps(expected, indent=1) + "\n")
    records = [imagenet(n, label, images[n]) for n, label in enumerate(labels)]
    for suffix, compression in (("", None), (".gz", "GZIP"), (".zlib", "ZLIB")):
        path = str(HERE / f"imagenet.tfrecord{suffix}")
        with tf.io.TFRecordWriter(path, compression and tf.io.TFRecordOptions(compression)) as file:
            for record in records:
                file.write(record.SerializeToString())
    with tf.io.TFRecordWriter(str(HERE / "kinds.tfrecord")) as file:
        for number, image in enumerate(images):
            file.write(kinds(number, image).SerializeToString())


if __name__ == "__main__":
    main()
