"""Finds the columns of a Parquet file that hold images and labels, by its schema alone.

    image    Hugging Face's struct {bytes: binary, path: string}, or a binary column
    label    integers, texts, floats, or lists of these; the names of Hugging Face's ClassLabel

A column is found where there is no choice: one of a well-known name, or the only one that can be
it. Where there is a choice, the user has to make it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import printable
from feeder.source.label_files.columns import SplitColumn, choose_label
from feeder.source.source import SourceSpec

_IMAGE_NAMES: Final = (
    *("image", "img", "image_bytes", "img_bytes", "image_data", "jpg", "jpeg", "png", "webp"),
    *("bytes", "content", "picture", "photo", "encoded"),
)
_TEXT_PARTS: Final = ("image", "img", "url", "path", "file", "jpg", "photo", "picture")
"""Of the names of columns that have something in place of images."""

_BYTES: Final = ("binary", "large_binary", "binary_view")
_TEXTS: Final = ("string", "large_string", "string_view")
_LISTS: Final = ("list", "large_list", "fixed_size_list")
_SHOWN_MAX: Final = 20
WRITE_CSV: Final = (
    "write the columns of paths and labels as CSV (pandas.read_parquet(…).to_csv(…)) and pack the "
    "files' folder with --labels FILE.csv"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns to read."""

    image: str
    path_field: str
    """The field of the image's struct that has the file's name; "" without one."""
    label: str
    """Empty where there are no labels."""
    class_names: tuple[str, ...]
    split: str
    """Empty where none is called like one that holds splits."""
    leaves: list[str]
    """The columns to read, as pyarrow names them; first the image's bytes."""


def find_columns(schema: pa.Schema, spec: SourceSpec, path: str) -> Columns:
    """Return the columns of a file's schema; ``path`` is for messages.

    Raises ConfigError where options do not fit or are missing, DatasetError for a file without
    images.
    """
    described = _described_features(schema)
    declared = {
        name: names for name in schema.names if (names := _class_names(described.get(name)))
    }
    image = _find_image(schema, spec, path)
    label = ""
    if spec.label_kind != "none":
        label = _find_label(schema, spec, image, declared, path)
    split = _find_split(schema, (image, label))
    kind = _chosen(schema, image, "--image", path).type
    leaves, path_field = [image], ""
    if pa.types.is_struct(kind):
        leaves = [f"{image}.bytes"]
        if kind.get_field_index("path") >= 0 and _is(kind.field("path").type, *_TEXTS):
            path_field = "path"
            leaves.append(f"{image}.path")
    return Columns(
        image=image,
        path_field=path_field,
        label=label,
        class_names=declared.get(label, ()),
        split=split,
        leaves=[*leaves, *filter(None, (label, split))],
    )


def _find_image(schema: pa.Schema, spec: SourceSpec, path: str) -> str:
    if spec.image:
        field = _chosen(schema, spec.image, "--image", path)
        if _is(field.type, *_TEXTS):
            raise _texts_instead(field.name, path)
        if not _has_image(field):
            raise ConfigError(
                f"{path}: the column {printable(spec.image)} is {field.type}, not the bytes of one "
                f"image: choose another with --image ({_shown(schema)})"
            )
        return str(field.name)
    fields = [each for each in schema if _has_image(each) and each.name != spec.label]
    if not spec.label:
        fields = [each for each in fields if not choose_label([each.name], path)]
    structs = [each.name for each in fields if pa.types.is_struct(each.type)]
    found = structs or [each.name for each in fields]
    known = [name for name in found if name.lower() in _IMAGE_NAMES]
    if len(found) == 1 or len(known) == 1:
        return str((known or found)[0])
    if found:
        names = ", ".join(map(printable, found))
        raise ConfigError(f"{path} has several columns of bytes: choose one with --image ({names})")
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("path") >= 0:
            raise _texts_instead(f"{field.name}.path", path)
        if _is(field.type, *_TEXTS) and any(part in field.name.lower() for part in _TEXT_PARTS):
            raise _texts_instead(field.name, path)
    raise DatasetError(
        f"{path} has no column of image bytes, which Feeder reads from Parquet: {_shown(schema)}"
    )


def _find_split(schema: pa.Schema, taken: Collection[str]) -> str:
    found = [
        str(field.name)
        for field in schema
        if SplitColumn(field.name).is_usual
        and field.name not in taken
        and schema.names.count(field.name) == 1
        and _is(field.type, *_TEXTS, "boolean", "integer")
    ]
    return min(found, key=lambda name: name.lower() != "split", default="")


def _texts_instead(name: str, path: str) -> DatasetError:
    return DatasetError(
        f"{path} has no images, only texts in its column {printable(name)}: if they are paths of "
        f"files that you have, {WRITE_CSV}; if they are URLs, download the images first "
        "(img2dataset writes shards that Feeder packs)"
    )


def _find_label(
    schema: pa.Schema, spec: SourceSpec, image: str, declared: Collection[str], path: str
) -> str:
    others = [name for name in schema.names if name != image]
    label = spec.label or choose_label(others, path, declared)
    if not label:
        raise ConfigError(
            f"{path}: no column is called label: choose one with --label, or give --label-kind "
            f"none ({_shown(schema)})"
        )
    field = _chosen(schema, label, "--label", path)
    kind = field.type.value_type if _is(field.type, *_LISTS) else field.type
    if not _is(kind, *_TEXTS, *_BYTES, "integer", "floating", "boolean"):
        raise ConfigError(
            f"{path}: the column {printable(field.name)} is {field.type}, which is no label: "
            f"choose another with --label ({_shown(schema)})"
        )
    return str(field.name)


def _chosen(schema: pa.Schema, name: str, option: str, path: str) -> pa.Field:
    if (count := schema.names.count(name)) > 1:
        raise DatasetError(f"{path} has {count} columns called {printable(name)}: rename them")
    if not count:
        raise ConfigError(f"{path} has no column {printable(name)} ({option}): {_shown(schema)}")
    return schema.field(name)


def _has_image(field: pa.Field) -> bool:
    if not pa.types.is_struct(field.type):
        return _is(field.type, *_BYTES)
    at = field.type.get_field_index("bytes")
    return at >= 0 and _is(field.type.field(at).type, *_BYTES)


def _is(kind: pa.DataType, *names: str) -> bool:
    """Return whether values of a type, also in a dictionary, are of one of these of pyarrow's."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _shown(schema: pa.Schema) -> str:
    """Return the columns and their types for a message."""
    shown = [f"{printable(field.name)} ({field.type})" for field in schema][:_SHOWN_MAX]
    more = f" and {len(schema) - _SHOWN_MAX} more" if len(schema) > _SHOWN_MAX else ""
    return f"its columns are {', '.join(shown)}{more}"


def _described_features(schema: pa.Schema) -> Mapping[str, Any]:
    """Return what Hugging Face's datasets has written about each column; {} without that."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _class_names(described: object) -> tuple[str, ...]:
    """Return the names of a ClassLabel, or of a list of these."""
    for _ in range(3):
        if isinstance(described, list) and len(described) == 1:
            described = described[0]
        if not isinstance(described, dict):
            return ()
        if described.get("_type") == "ClassLabel":
            names = described.get("names")
            is_list = isinstance(names, list) and all(isinstance(each, str) for each in names)
            return tuple(names or ()) if is_list else ()
        described = described.get("feature")
    return ()
