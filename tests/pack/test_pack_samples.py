"""``feeder.pack_samples``: samples of an iterable, resumed by key after every interruption."""

import ast
import contextlib
import errno
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.dataset.manifest import QUARANTINE_NAME
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.publish import read_quarantine
from feeder.source.listing import ItemListing
from tests.support.sources import (
    REPOSITORY,
    encoded,
    file_tree,
    image,
    pack,
    run_inline,
)

Sample = tuple[str, Any, Any]
COUNT = 23
NAMES = ["ant", "bee", "cat"]


def make(count: int = COUNT) -> list[Sample]:
    """Return different small images, whose class is their number modulo three."""
    return [
        (f"{n % 2}/{n:03}.jpg", encoded(image(40 + n, 30, seed=n)), n % 3) for n in range(count)
    ]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return make()


@pytest.fixture(autouse=True)
def small_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack in this process, and spool into containers of four samples."""
    run_inline(monkeypatch, "pack.run")
    monkeypatch.setattr("feeder.pack.spool.CONTAINER_SAMPLES", 4)
    monkeypatch.setattr("os.fsync", lambda _: None)


def labels_by_key(dataset: Path) -> dict[str, Any]:
    with Dataset.open(dataset) as opened:
        ids = np.arange(opened.layout.samples)
        rows = np.zeros((len(ids), *opened.labels.row_shape), opened.labels.dtype)
        opened.read_labels(ids, opened.read_records(ids), rows)
        return {opened.name_of(number) or "": rows[number].tolist() for number in ids.tolist()}


def spooled(destination: Path) -> int:
    return len([*(destination / ".packing").glob("list-*.spill")])


def failing_after(samples: Iterable[Sample], error: BaseException) -> Iterator[Sample]:
    yield from samples
    raise error


def test_labels_come_back_by_key(samples: list[Sample], tmp_path: Path) -> None:
    """Of every form that only Python has; test_kinds has those of all sources."""
    places = [*range(3)]
    for at, (kind, label, expected) in enumerate(
        (
            (None, lambda n: np.int64(n % 3), lambda n: n % 3),
            ("multi", lambda n: NAMES[: n % 4], lambda n: [place < n % 4 for place in places]),
            (None, lambda n: [n % 3 == place for place in places], lambda n: n % 3),
            ("float", lambda n: (np.float32(n), 0.5), lambda n: [float(n), 0.5]),
            ("none", lambda _: None, lambda _: -1),
        )
    ):
        given = [(key, data, label(number)) for number, (key, data, _) in enumerate(samples)]
        names = None if kind in ("float", "none") else NAMES
        path = tmp_path / str(at)
        packed = feeder.pack_samples(given, path, labels=kind, class_names=names)
        assert (packed.samples, packed.quarantined) == (COUNT, 0)
        assert packed.classes == tuple(names or ())
        wanted = {key: expected(number) for number, (key, *_) in enumerate(samples)}
        assert labels_by_key(path) == wanted
        assert not (path / ".packing").exists()


def test_the_dataset_is_that_of_a_class_folder_with_the_same_names(
    samples: list[Sample], tmp_path: Path
) -> None:
    given = [(f"{NAMES[label]}/{key[2:]}", data, NAMES[label]) for key, data, label in samples]
    for key, data, _ in given:
        path = tmp_path / "source" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    expected = pack(tmp_path / "source", tmp_path / "folder")
    views = ((key, memoryview(bytearray(data)), label) for key, data, label in reversed(given))
    packed = feeder.pack_samples(views, tmp_path / "packed")
    assert packed.fingerprint == expected.manifest.content
    assert file_tree(tmp_path / "packed") == file_tree(tmp_path / "folder")


def test_one_sample_is_held_at_a_time(tmp_path: Path) -> None:
    class Counted(bytes):
        alive = most = 0

        def __init__(self, _: bytes) -> None:
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

        def __del__(self) -> None:
            Counted.alive -= 1

    stored = {n: encoded(image(40 + n, 30, seed=n)) for n in range(9)}
    given = ((str(n), Counted(stored[n]), 0) for n in stored)
    assert feeder.pack_samples(given, tmp_path / "packed").samples == 9
    assert (Counted.alive, Counted.most) == (0, 1)


SCRIPT = """
import os, signal, sys
import feeder.pack.part, feeder.pack.run, feeder.pack.spool
from tests.pack.test_pack_samples import make
from tests.support.sources import run_here
import feeder

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def samples():
    for number, sample in enumerate(make()):
        if sys.argv[2] == "spooling" and number == 14:
            die()
        yield sample

feeder.pack.spool.CONTAINER_SAMPLES = 4
feeder.pack.run.run_tasks = run_here
if sys.argv[2] == "packing":
    write_result = feeder.pack.part.WorkFolder.write_result
    feeder.pack.part.WorkFolder.write_result = lambda work, number, result: (
        die() if number == 2 else write_result(work, number, result)
    )
if sys.argv[2] == "removing":
    feeder.pack.run.WorkFolder.remove = lambda work: (
        [path.unlink() for path in work.path.glob("list-*")], die()
    )
feeder.pack_samples(samples(), sys.argv[1], shards=4)
"""


@pytest.mark.parametrize("phase", ["spooling", "packing", "removing"])
def test_a_killed_call_resumes_in_any_order(
    samples: list[Sample], tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "packed"
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, destination, phase],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    written: list[int] = []
    spill = ItemListing.spill
    monkeypatch.setattr(
        ItemListing, "spill", lambda self, data: (written.append(1), spill(self, data))[1]
    )
    resumed = feeder.pack_samples(reversed(samples), destination, shards=4)
    assert len(written) == (COUNT - 12 if phase == "spooling" else 0)
    undisturbed = feeder.pack_samples(samples, tmp_path / "undisturbed", shards=4)
    assert resumed.fingerprint == undisturbed.fingerprint
    assert file_tree(destination) == file_tree(tmp_path / "undisturbed")


@pytest.mark.parametrize("error", [OSError(28, "mine"), KeyboardInterrupt()])
def test_an_error_of_the_iterable_propagates_and_keeps_what_was_spooled(
    samples: list[Sample], tmp_path: Path, error: BaseException
) -> None:
    for given, containers in ((6, 2), (11, 4)):  # of 4, 2, 4 and 1 samples
        with pytest.raises(type(error)) as raised:
            feeder.pack_samples(failing_after(samples[:given], error), tmp_path / "packed")
        assert raised.value is error
        assert spooled(tmp_path / "packed") == containers
    packed = feeder.pack_samples(iter(samples), tmp_path / "packed")
    expected = feeder.pack_samples(samples, tmp_path / "expected")
    assert packed.fingerprint == expected.fingerprint


def test_containers_after_one_that_a_crash_took_are_spooled_again(
    samples: list[Sample], tmp_path: Path
) -> None:
    begin(samples, tmp_path / "packed")
    (tmp_path / "packed" / ".packing" / "list-00002.json").unlink()
    begin([*samples[:4], *samples[8:12]], tmp_path / "packed")  # the list 3 had these
    assert feeder.pack_samples(samples, tmp_path / "packed").samples == COUNT


def test_containers_grow_to_a_32nd_of_all_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses the open one: 3 % of a large source, as docs/packing.md says."""
    monkeypatch.setattr("feeder.pack.spool.CONTAINER_SAMPLES", 1 << 16)
    monkeypatch.setattr("feeder.pack.spool.CONTAINER_BYTES", 5)
    given = failing_after(((f"{n:03}", b"image", 0) for n in range(160)), KeyError())
    with pytest.raises(KeyError):
        feeder.pack_samples(given, tmp_path / "packed")
    sizes = [path.stat().st_size // 5 for path in (tmp_path / "packed").rglob("list-*.spill")]
    assert (sum(sizes), min(sizes)) == (160, 1)
    assert max(sizes) == 160 // 32


def test_a_full_disk_is_one_line_and_complete_containers_stay(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(listing: ItemListing, *sample: Any, **place: Any) -> None:
        if listing.number == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(listing, *sample, **place)

    add, folder = ItemListing.add, tmp_path / "packed"
    with monkeypatch.context() as patch:
        patch.setattr(ItemListing, "add", fill)
        with pytest.raises(ResourceError) as raised:
            feeder.pack_samples(samples, folder)
    assert str(raised.value) == (
        f"spooling samples into {folder} failed: no space left on its disk; make room, then call "
        "pack_samples again to resume"
    )
    assert spooled(folder) == 2
    assert feeder.pack_samples(samples, folder).samples == COUNT


@contextlib.contextmanager
def stopped_before_publishing() -> Iterator[None]:
    """Stop the packing in the body when all parts are packed, or at a KeyError before that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", lambda *_, **__: {}["stopped"])
        with pytest.raises(KeyError):
            yield


def begin(samples: Iterable[Sample], destination: Path, *, packing: bool = False) -> None:
    """Leave an unfinished packing of ``samples``."""
    given = samples if packing else failing_after(samples, KeyError())
    with stopped_before_publishing():
        feeder.pack_samples(given, destination)


@pytest.mark.parametrize("packing", [False, True])
def test_other_samples_under_the_same_keys_are_refused(
    samples: list[Sample], tmp_path: Path, packing: bool
) -> None:
    begin(samples, tmp_path / "packed", packing=packing)
    (key, first, label), (_, second, _) = samples[:2]
    before = {name for name in file_tree(tmp_path / "packed") if ".spill" in name}
    for given, message in (
        ([(key, second, label), *samples[1:]], "the bytes or the label of 0/000.jpg have changed"),
        ([(key, first, 2), *samples[1:]], "the bytes or the label of 0/000.jpg have changed"),
        ([(key, first, "c0"), *samples[1:]], "the bytes or the label of 0/000.jpg have changed"),
        (samples[2:], "and 1 more did not come: give the same samples and options to"),
    ):
        with pytest.raises(ConfigError, match=message):
            feeder.pack_samples(given, tmp_path / "packed")
        assert before <= {*file_tree(tmp_path / "packed")}
    assert feeder.pack_samples(samples, tmp_path / "packed").samples == COUNT


def test_a_new_sample_is_taken_until_packing_has_begun(
    samples: list[Sample], tmp_path: Path
) -> None:
    begin(samples[:9], tmp_path / "packed")
    begin(samples[:11], tmp_path / "packed", packing=True)
    with pytest.raises(ConfigError, match=r"of an earlier call, and 1/011\.jpg is new: give the"):
        feeder.pack_samples(samples, tmp_path / "packed")
    assert feeder.pack_samples(samples[:11], tmp_path / "packed").samples == 11
    with pytest.raises(ConfigError, match="is a complete dataset already"):
        feeder.pack_samples(samples[:11], tmp_path / "packed")


JPEG = encoded(image())


def test_what_is_no_sample_is_one_line(tmp_path: Path) -> None:
    given: list[Any]
    for number, (given, message) in enumerate(
        (
            ([("a", JPEG, 0), ("b", JPEG, 0), ("a", JPEG, 0)], "two samples have the key a: keys"),
            ([("v.1", JPEG, 0), ("v.2", JPEG, 0)], "the keys v.1 and v.2 would unpack to the same"),
            (["a"], "sample 1 is a str: give a tuple (key, bytes, label)"),
            ([(7, JPEG, 0)], "the key of sample 1 is of the type int: give a str"),
            ([("a", "x", 0)], "the image of sample 1, a, is of the type str: give the bytes of an"),
            ([("x/../a", JPEG, 0)], "the key 'x/../a' of sample 1 is no name"),
            ([("x" * 65_536, JPEG, 0)], "of sample 1 is no name: give text of 1 to 65535 bytes"),
            ([("a", JPEG, None)], "the first sample decides what labels are, and a cannot: it has"),
            ([], "the iterable gave no samples: there is nothing to pack"),
        )
    ):
        with pytest.raises((ConfigError, DatasetError), match=f"^.*{re.escape(message)}.*$"):
            feeder.pack_samples(given, tmp_path / str(number))


def test_arguments_are_checked_before_a_sample_is_taken(tmp_path: Path) -> None:
    given = failing_after([], AssertionError("consumed"))
    options: dict[str, Any]
    for options, message in (
        ({"shards": 0}, "^shards 0 is not within"),
        ({"max_bad": "many"}, "^max_bad many: give a share"),
        ({"classes_of": "/nowhere/--shards"}, "^classes_of: no dataset at /nowhere/--shards"),
        ({"class_names": ["a", " b"]}, r"^class_names\[1\] is ' b'"),
        ({"labels": "text"}, "^labels 'text' is not one of"),
    ):
        with pytest.raises((ConfigError, DatasetError), match=message):
            feeder.pack_samples(given, tmp_path / "packed", **options)
    assert not (tmp_path / "packed").exists()


def test_errors_name_arguments_and_no_option_of_the_command_line(tmp_path: Path) -> None:
    given = [("a", JPEG, 0.0), ("b", JPEG, 1.0)]
    with pytest.raises(ConfigError, match="give labels=index if they are classes, float") as raised:
        feeder.pack_samples(given, tmp_path / "packed")
    assert "--" not in str(raised.value)


def test_bad_images_and_labels_are_left_out_up_to_a_share(
    samples: list[Sample], tmp_path: Path
) -> None:
    given = [*samples, ("text", b"not an image", 1), ("empty", b"", 1), ("nan", JPEG, None)]
    with pytest.raises(DatasetError, match="leave them out with max_bad 12%"):
        feeder.pack_samples(given, tmp_path / "packed")
    with pytest.raises(DatasetError, match=r"first empty, .* all are in .*; check the samples'"):
        feeder.pack_samples(given[-3:-1], tmp_path / "bad", max_bad="100%")
    packed = feeder.pack_samples(given, tmp_path / "packed", max_bad=3)
    assert (packed.samples, packed.quarantined) == (COUNT, 3)
    assert {entry.path: entry.kind for entry in read_quarantine(tmp_path / "packed")} == {
        "text": "not-image",
        "empty": "empty",
        "nan": "bad-label",
    }
    assert (tmp_path / "packed" / QUARANTINE_NAME).exists()


def test_labels_and_names_that_were_mended_count_when_called_again(
    samples: list[Sample], tmp_path: Path
) -> None:
    bad = [(key, data, label if label else -1) for key, data, label in samples[::-1]]
    with pytest.raises(DatasetError, match="8 of 23 images are bad"):
        feeder.pack_samples(bad, tmp_path / "packed")
    with pytest.raises(
        ConfigError, match=r"class 2 is not among the 2 names of class_names: add it"
    ):
        feeder.pack_samples(samples, tmp_path / "packed", class_names=NAMES[:2])
    assert spooled(tmp_path / "packed") == 6, "nothing has to be spooled again"
    packed = feeder.pack_samples(samples, tmp_path / "packed", class_names=NAMES)
    assert (packed.samples, packed.classes) == (COUNT, tuple(NAMES))


def test_each_refuses_to_continue_what_the_other_began(
    samples: list[Sample], tmp_path: Path
) -> None:
    begin(samples, tmp_path / "packed")
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / "a.jpg").write_bytes(JPEG)
    before = file_tree(tmp_path / "packed")
    with pytest.raises(ConfigError, match="holds samples of an unfinished pack_samples: call that"):
        pack(tmp_path / "source", tmp_path / "packed")
    assert file_tree(tmp_path / "packed") == before
    with stopped_before_publishing():
        pack(tmp_path / "source", tmp_path / "other")
    with pytest.raises(ConfigError, match="holds the beginning of another packing: give another"):
        feeder.pack_samples(samples, tmp_path / "other")
    assert pack(tmp_path / "source", tmp_path / "other").manifest.samples == 1


def test_the_example_packs_a_database(samples: list[Sample], tmp_path: Path) -> None:
    tags = {key: NAMES[: number % 4] for number, (key, *_) in enumerate(samples)}
    with contextlib.closing(sqlite3.connect(tmp_path / "photos.db")) as connection, connection:
        connection.execute("CREATE TABLE photo (id INTEGER PRIMARY KEY, path TEXT, image BLOB)")
        connection.execute("CREATE TABLE tag (photo INTEGER, name TEXT)")
        for number, (key, data, _) in enumerate(samples):
            connection.execute("INSERT INTO photo VALUES (?, ?, ?)", (number, key, data))
            connection.executemany(
                "INSERT INTO tag VALUES (?, ?)", [(number, tag) for tag in reversed(tags[key])]
            )
    done = subprocess.run(
        [sys.executable, REPOSITORY / "docs/examples/pack_database.py", "photos.db", "photos"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("23 samples with 3 tags in photos\n", "")
    assert labels_by_key(tmp_path / "photos") == {
        key: [name in tags[key] for name in NAMES] for key, *_ in samples
    }


def test_importing_feeder_imports_nothing_and_its_stub_has_every_name() -> None:
    code = "import sys; before = {*sys.modules}; import feeder; print({*sys.modules} - before)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == "{'feeder'}\n"
    stub = ast.parse((REPOSITORY / "feeder" / "__init__.pyi").read_text("utf-8"))
    names = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or "" for alias in node.names}
    assert names == {*feeder.__all__}
    assert all(getattr(feeder, name) is not None for name in feeder.__all__)
