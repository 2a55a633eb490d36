"""Writes Parquet as Hugging Face's datasets does: a struct of bytes and path, and a ClassLabel."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from .material import PackImage

_ROWS_IN_GROUP: Final = 100  # what datasets chooses for images


def write_parquet(path: Path, images: Iterable[PackImage], classes: tuple[str, ...]) -> None:
    """Write ``images`` to ``path``: columns ``image`` and ``label``."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(classes), "_type": "ClassLabel"},
    }
    image_type = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"image": image_type, "label": pa.int64()}).with_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    rows = iter(images)
    with pq.ParquetWriter(path, schema) as writer:
        while group := [*itertools.islice(rows, _ROWS_IN_GROUP)]:
            pictures = [{"bytes": row.path.read_bytes(), "path": row.path.name} for row in group]
            columns = [
                pa.array(pictures, image_type),
                pa.array([row.label for row in group], pa.int64()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
