"""The file of a selection, and the conditions of ``feeder select --where``."""

import json
import random
import struct

import numpy as np

from feeder.choose.where import Condition, parse_where
from feeder.dataset.format import RECORD
from feeder.dataset.manifest import canonical_json
from feeder.dataset.selection import PREAMBLE, Selection, aligned
from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe import Recipe
from tests.dataset.selections import draw_tables, member, resealed, selection_bytes
from tests.fuzz.mutate import mutate_bytes, mutate_value
from tests.fuzz.target import Target

_BATCH = Recipe.for_split("train", batch_size=1)
_MULTI = LabelSpec(kind="multi", width=2)
_VALID = (
    selection_bytes([[1, 2, 700], [0, 4]], own_labels=[[0, 1, 1], [0, 0]]),
    selection_bytes([list(range(40)), [7], list(range(3, 90, 3))]),
    selection_bytes(
        [[1, 2, 700], [0, 4]],
        draws=draw_tables(
            [[[1, 0, 3], [2, 2]], [[5, 1, 0], [0, 2**32 - 1]]],
            epochs=(0, 5),
            shares=[7, 3],
            components=[[0, 1, 0], [1, 1]],
        ),
    ),
    selection_bytes([[5]], [member(0, 9, labels=_MULTI)], labels=_MULTI),
)
_WORDS = "width height bytes cmyk wrong-suffix and or not ( ) < <= > >= == != * / 3 0.5 1e999"


def _file(rng: random.Random) -> bytes:
    """Return a damaged file; most checksums are valid, so that the damage reaches later checks."""
    data = rng.choice(_VALID)
    end = PREAMBLE.size + struct.unpack_from("<I", data, 12)[0]
    tables = bytearray(data[aligned(end) :])
    fields = json.loads(data[PREAMBLE.size : end])
    if rng.random() < 0.5:
        fields = mutate_value(rng, fields)
    if rng.random() < 0.4:
        at = rng.randrange(len(tables))
        tables[at] = rng.randrange(256)
    try:
        text = canonical_json(fields)
    except (ValueError, RecursionError):  # NaN, or nested too deeply
        text = b"[" * 5000
    head = data[:12] + struct.pack("<I", len(text)) + bytes(8) + text
    data = resealed(head + bytes(aligned(len(head)) - len(head)) + tables)
    if rng.random() < 0.2:
        data = mutate_bytes(rng, data, edits_max=3)
    return resealed(data) if rng.random() < 0.3 and len(data) > PREAMBLE.size else data


def _read_file(data: bytes) -> Selection:
    selection = Selection.parse(memoryview(data), "FILE")
    selection.check()
    return selection


def _holds(selection: Selection, _: bytes) -> None:
    """Every row is a sample of a member, and every label a class; what is drawn are rows."""
    ids = np.arange(selection.samples)
    for group in selection.locate(ids):
        dataset = selection.members[group.member]
        assert 0 <= group.sample_ids.min() <= group.sample_ids.max() < dataset.samples
        labels = np.zeros((len(ids), *selection.labels.row_shape), selection.labels.dtype)
        own = np.zeros((len(group.rows), *dataset.labels.row_shape), dataset.labels.dtype)
        selection.take_labels(ids, group, own, labels)
        if selection.labels.kind == "index":
            assert 0 <= labels.min() <= labels.max() < len(selection.classes)
    assert selection.spans(0, len(ids))
    if selection.layout.draws is not None and selection.layout.samples < 10_000:
        batch = _BATCH.plan_epoch(selection.layout, seed=0, epoch=7).samples(0)
        assert 0 <= batch.min() <= batch.max() < len(ids)


def _condition(rng: random.Random) -> str:
    text = " ".join(rng.choices(_WORDS.split(), k=rng.randint(1, 9)))
    if rng.random() < 0.3:
        text = "not (width >= 64 and bytes / height < 1e6) or png"
    if rng.random() < 0.6:
        text = mutate_bytes(rng, text.encode(), edits_max=2).decode("utf-8", "surrogateescape")
    return text


def _applies(condition: Condition, _: str) -> None:
    records = np.zeros(5, RECORD)
    records["width"] = np.arange(5)
    assert condition(records).shape == (5,)


TARGETS = (
    Target("selection", _file, _read_file, 20_000, DatasetError, _holds),
    Target("where", _condition, parse_where, 20_000, ConfigError, _applies),
)
