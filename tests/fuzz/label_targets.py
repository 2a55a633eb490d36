"""Files of labels beside images, brace patterns, and the first bytes of what may be a source."""

import json
import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from feeder.errors import ConfigError, DatasetError
from feeder.pack.classes import plan_classes
from feeder.pack.items import merge_lists
from feeder.pack.label_reading import read_labels
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import encode_name
from feeder.source.contents import recognise_file
from feeder.source.label_files.columns import IMAGE_SUFFIXES
from feeder.source.listing import ListedContainer, ListedItems
from feeder.source.location.patterns import EXPANDED_MAX, expand_braces
from feeder.source.source import SourceSpec
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.target import Target, folder, refusal, written
from tests.source.listings import GOLDEN, list_container

_FILES = ("a.jpg", "b.png", "d/c.jpg", "é.jpg")
_KINDS = frozenset(("unreadable", "no-label", "bad-label", "bad-row", "two-labels"))
_TOKENS = (
    *(bytes([byte]) for byte in b',;\t|"\n\r\0 \\'),
    *(b'""', b"\r\n", b"\xef\xbb\xbf"),
    *(b"{", b"}", b"[", b"[" * 3000, b":", b"null", b"true", b"NaN", b"1e999", b"-1", b"007"),
    *(b"9" * 5000, b'"\\ud800"', b"\xff", b"file", b"label", b"a.jpg", b"../a.jpg", b"/a.jpg"),
    *(b'{"file":"a.jpg","label":1}', b"1.5", b"2.0", b"NA", b"[1,0,0]", b"[0, null]"),
    *(b"2147483648", b"\xe2\x80\xa8", b"\x1f\x8b"),
)
_PATTERNS = (
    "s-{000..146}.tar",
    "{a,b{1..3}c}-{x..z..2}.tar",
    "{train,val}-{0..9}{,x}",
    "{{0..3},{9..1..4}}",
)


class _Case(NamedTuple):
    name: str
    data: bytes
    options: dict[str, Any]
    """Of the SourceSpec: which columns, and what they mean."""


@cache
def _images() -> str:
    """This process's folder of images."""
    for name in _FILES:
        path = folder() / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff")
    return str(folder() / "images")


@cache
def _samples() -> tuple[tuple[str, bytes], ...]:
    labels = dict(zip(_FILES, (3, 1, 0, 3), strict=True))
    rows = [{"file": name, "label": label, "w": [0.5, 1]} for name, label in labels.items()]
    made = [
        ("x.json", json.dumps(labels)),
        ("x.json", json.dumps(rows)),
        ("x.json", json.dumps({"labels": list(labels.items())})),
        ("x.json", json.dumps({name: {"label": label} for name, label in labels.items()})),
        ("x.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)),
        ("x.txt", "".join(f"{name} {label}\n" for name, label in labels.items())),
        ("x.json", json.dumps({name: [1, 0, n % 2] for n, name in enumerate(_FILES)})),
    ]
    for delimiter in ",;\t":
        lines = [delimiter.join((name, f"{n}", f'"x|{n}"')) for name, n in labels.items()]
        made.append(("x.csv", "\n".join(lines)))
        made.append(("x.csv", "\n".join([delimiter.join(("file", "label", "z")), *lines])))
    return tuple((name, text.encode()) for name, text in made)


def _labels(rng: random.Random) -> _Case:
    name, data = rng.choice(_samples())
    if rng.random() < 0.9:
        others = [other for _, other in _samples()]
        data = mutate_bytes(rng, data, tokens=_TOKENS, others=others, edits_max=5)
    name = rng.choice((*[name] * 9, "x.csv", "x.json", "x.jsonl"))
    options = {
        "image": rng.choice((*[""] * 8, "file", "column 1")),
        "label": rng.choice((*[""] * 4, *["label"] * 4, "label,z", "column *", "w")),
        "label_kind": rng.choice((*[None] * 7, *get_args(LabelChoice))),
        "uncertain": rng.choice(("", "", *get_args(Uncertain))),
        "label_base": rng.choice((None, None, 0, 1)),
    }
    return _Case(name, data, options)


def _read_labels(case: _Case) -> bool:
    """Check that every image is listed or rejected once."""
    spec = SourceSpec(
        kind="labelled-folder",
        location="images",
        containers=(_images(),),
        labels_file=str(written(case.data, case.name)),
        **case.options,
    )
    work = folder() / "work"
    listed = list_container(spec, work)
    assert set(_FILES) <= listed.items.keys() | listed.rejected.keys()
    assert not listed.items.keys() & listed.rejected.keys()
    assert {kind for kind, _ in listed.rejected.values()} <= _KINDS
    for name, (_, reason) in listed.rejected.items():
        encode_name(name)
        refusal(reason, line_max=500)
    for text in listed.facts.texts:
        text.encode()
    return _check_items(spec, work, listed.facts) and len(listed.items) == len(_FILES)


def _check_items(spec: SourceSpec, work: Path, facts: ListedContainer) -> bool:
    """Check that every item has a class, several or values, or a reason."""
    items = merge_lists(work, [ListedItems(work, 0, facts)])
    reading = read_labels(items, spec)
    plan = plan_classes(items, reading, spec, None)
    for reason in reading.bad.values():
        refusal(reason, line_max=500)
    good = np.array([row for row in range(len(items)) if row not in reading.bad], np.int64)
    classes = plan.labels_of(good)
    assert all(0 <= each < max(len(plan.classes), 1) for each in classes.tolist())
    for row in items.rows[good]:
        fields = (int(row[name]) for name in ("container", "form", "label"))
        assert len(plan.stored_row(items, *fields)) == plan.labels.stored_bytes
    return not reading.bad


def _braces(rng: random.Random) -> str:
    pattern = rng.choice(_PATTERNS).encode()
    if rng.random() < 0.8:
        tokens = (b"{", b"}", b",", b"..", b"0", b"99999", b"-", b"{0..99}", b"{" * 20, b"z")
        pattern = mutate_bytes(rng, pattern, tokens=tokens, size_max=4096)
    return pattern.decode("utf-8", "surrogateescape")


def _hold_braces(expanded: Sequence[str], _: str) -> None:
    assert 1 <= len(expanded) <= EXPANDED_MAX


def _file(rng: random.Random) -> bytes:
    names = ("kinds-gnu.tar", "webdataset-json.tar.gz", "imagenet.tfrecord", "classes.parquet")
    data = (GOLDEN / rng.choice(names)).read_bytes()[:4096]
    if rng.random() < 0.8:
        data = mutate_bytes(rng, data[:600], edits_max=3) + data[600:]
    return data


def _recognise(data: bytes) -> bool:
    """A format, whatever the bytes."""
    kind, what, _ = recognise_file(written(data))
    assert what.isprintable()
    return bool(kind)


assert {os.path.splitext(name)[1] for name in _FILES} <= IMAGE_SUFFIXES

TARGETS = (
    Target(
        "labels", _labels, _read_labels, 20_000, (ConfigError, DatasetError), memory_bytes=128 << 20
    ),
    Target(
        "braces",
        _braces,
        expand_braces,
        20_000,
        ConfigError,
        _hold_braces,
        slow_s=10.0,
        memory_bytes=512 << 20,
    ),
    Target("first-bytes", _file, _recognise, 20_000),
)
