"""A real daemon serves selections, with the bytes of their datasets, or says what it lacks."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.choose.members import open_samples
from feeder.client.stats import request_report
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.errors import ConfigError, DatasetError, PeerError
from feeder.metrics.records import CacheRecord
from feeder.plan.recipe import Recipe
from feeder.sample.selected_reader import make_reader
from tests.disk_cache.web_store import serve_store
from tests.faults.remote import PIECE, write_dataset
from tests.support.daemon import DEADLINE_S, Daemon, wait_until
from tests.support.sources import call_feeder, error_line, make_source, pack
from trainer_client import NumpyLoader

BATCH = 7
SEED = 3
SAMPLE_BYTES = 230_000  # of the dataset of noise


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets ``a`` and ``b``, and selections: ``half`` of both, ``few`` of ``a``."""
    folder = tmp_path_factory.mktemp("selections")
    for name, images in (("a", 53), ("b", 31)):
        pack(make_source(folder / f"src{name}", images, side=72), folder / name, shards=3)
    select(folder, "half", "a", "b", "--fraction", "0.6")
    select(folder, "few", "a", "--exclude-classes", "class1")
    return folder


def select(home: Path, name: str, *words: str) -> None:
    places = [home / word if (home / word).exists() else word for word in words]
    result = call_feeder("select", name, *places, "--out", home / f"{name}.sel")
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[Daemon]:
    with serve(home) as running:
        yield running


def serve(home: Path) -> Daemon:
    data = [f"a={home / 'a'}", *(f"{name}={home / name}.sel" for name in ("half", "few"))]
    options = [word for text in data for word in ("--data", text)]
    # The cache makes selections and datasets read each other's pictures.
    return Daemon(
        *options, "--bind", "tcp://127.0.0.1:0", "--workers", "2", "--decoded-bytes", "16MiB"
    )


def loader(daemon: Daemon, dataset: str, **fields: Any) -> NumpyLoader:
    fields = {"batch_size": BATCH, "seed": SEED, "image_size": 32} | fields
    return NumpyLoader(daemon.endpoint, dataset=dataset, **fields)


Rows = dict[int, tuple[bytes, int]]
"""By sample id, the pixels and the label of a row."""


def take(source: NumpyLoader, batches: int | None = None) -> Rows:
    rows: Rows = {}
    for number, batch in enumerate(source, 1):
        for row, sample_id in enumerate(batch.sample_ids.tolist()):
            rows[sample_id] = batch.images[row].tobytes(), int(batch.labels[row])
        if number == batches:
            break
    return rows


def make(path: Path, recipe: Recipe, ids: list[int], epoch: int = 0) -> Rows:
    """The rows as this process makes them."""
    with open_samples(path) as opened:
        pixels = np.empty((len(ids), 32, 32, 3), np.int8)
        labels = np.empty(len(ids), np.int64)
        reader = make_reader(opened, recipe)
        reader.fill(np.array(ids), seed=SEED, epoch=epoch, pixels=pixels, labels=labels)
    pairs = zip(ids, pixels, labels.tolist(), strict=True)
    return {number: (row.tobytes(), label) for number, row, label in pairs}


def test_the_start_report_says_what_a_selection_is_of(daemon: Daemon, home: Path) -> None:
    half, few = (Selection.open(home / f"{name}.sel") for name in ("half", "few"))
    assert f"data half: {half.layout.samples} samples of a, b, 3 classes, " in daemon.ready
    assert f"data few: {few.layout.samples} samples of a, 3 classes, " in daemon.ready
    assert "data b" not in daemon.ready, "it is opened for a selection alone"
    assert "2 workers serve 3 datasets" in daemon.ready
    report = request_report(daemon.endpoint, DEADLINE_S)
    assert {(d.name, d.content) for d in report.datasets} >= {
        ("half", half.content),
        ("few", few.content),
    }
    assert len(report.datasets) == 3


@pytest.mark.parametrize("name", ["half", "few"])
def test_samples_have_the_bytes_of_their_datasets(daemon: Daemon, home: Path, name: str) -> None:
    selection = Selection.open(home / f"{name}.sel")
    with loader(daemon, name, batch_size=1) as source:
        assert source.dataset.classes == ("class0", "class1", "class2")
        rows = take(source)
        recipe = source.recipe
    assert sorted(rows) == list(range(selection.layout.samples))
    assert rows == make(home / f"{name}.sel", recipe, sorted(rows))
    for number, member in enumerate(selection.members):
        own_rows, own_ids = selection.rows_of(number)
        plain = make(home / member.name, recipe, own_ids.tolist())
        assert [rows[row] for row in own_rows.tolist()] == [*plain.values()]


def test_a_selection_and_its_dataset_share_the_decoded_cache(home: Path) -> None:
    with serve(home) as daemon:  # where nothing has been counted before

        def looked_up() -> tuple[int, int]:
            """Rows that were not found, and all."""
            (node,) = request_report(daemon.endpoint, DEADLINE_S).nodes
            cache = node.now.cache if node.now else CacheRecord()
            return cache.misses, cache.hits + cache.misses

        with loader(daemon, "a", split="val", batch_size=1) as source:
            rows = len(take(source))
        wait_until(lambda: looked_up()[0] >= rows, "all are counted")
        before = looked_up()[1]  # the next epoch may have begun
        with loader(daemon, "few", split="val", batch_size=1) as source:
            taken = len(take(source))
        wait_until(lambda: looked_up()[1] >= before + taken, "all are counted")
        assert looked_up()[0] == rows, "all were made for the dataset"


def test_a_job_resumes_with_other_ranks_where_it_was(daemon: Daemon) -> None:
    fields = {"lanes": 2, "working_set": 0}
    with loader(daemon, "half", recipe=fields) as source:
        whole = [batch.sample_ids.tolist() for batch in source]
        expected = sorted(number for ids in whole for number in ids)
    assert len(expected) == len({*expected})
    with loader(daemon, "half", recipe=fields) as source:
        first = take(source, 2)
        state = source.state_dict()
    with closing(loader(daemon, "half", recipe=fields)) as source:
        source.load_state_dict(state)
        rest = take(source)
    assert sorted([*first, *rest]) == expected
    halves: Rows = {}
    for rank in range(2):  # the same global batch, over two ranks
        with loader(daemon, "half", recipe=fields, batch_size=1, rank=rank, world_size=7) as source:
            halves |= take(source)
    with (
        loader(daemon, "few", recipe=fields) as other,
        pytest.raises(ConfigError, match="dataset"),
    ):
        other.load_state_dict(state)


def test_names_and_sources_of_rows(daemon: Daemon, home: Path) -> None:
    selection = Selection.open(home / "half.sel")
    with loader(daemon, "half", split="val", rank=0, world_size=2) as source:
        batch = next(iter(source))
        sources, names = source.source_ids(batch), source.names(batch.sample_ids)
    members, ids = selection.split(batch.sample_ids)
    assert sources == [("ab"[m], i) for m, i in zip(members, ids.tolist(), strict=True)]
    assert {dataset for dataset, _ in sources} == {"a", "b"}
    for (dataset, sample_id), name in zip(sources, names, strict=True):
        with Dataset.open(home / dataset) as opened:
            assert opened.read_name(sample_id) == name
    with loader(daemon, "a") as source:
        assert source.source_ids([5, -1, 0]) == [("a", 5), ("", -1), ("a", 0)]
        with pytest.raises(ConfigError, match="has no sample 53"):
            source.source_ids([53])


def test_clients_are_not_offered_datasets_of_selections_alone(daemon: Daemon, home: Path) -> None:
    hidden = f":{Dataset.open(home / 'b').content}"
    with pytest.raises(DatasetError, match=r"no dataset ':.{32}' here; served: a, few, half"):
        loader(daemon, hidden)


def test_preview_draws_the_crops_of_a_served_selection(daemon: Daemon, tmp_path: Path) -> None:
    arguments = ("--images", "5", "--batch-size", str(BATCH), "--out", tmp_path / "p.png")
    result = call_feeder("preview", "--from", daemon.endpoint, "--dataset", "half", *arguments)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "p.png").stat().st_size > 1000


# --- What it lacks ------------------------------------------------------------------------------


def copy(home: Path, folder: Path, *names: str) -> Path:
    for name in names:
        source = home / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder


def serve_fails(*arguments: str | Path) -> str:
    result = call_feeder("serve", *arguments, "--bind", "tcp://127.0.0.1:0")
    assert result.returncode == DatasetError.exit_status
    return error_line(result)


def test_a_dataset_is_found_by_content_wherever_it_is(home: Path, tmp_path: Path) -> None:
    """Neither its folder's name nor the one under which it is served matters."""
    copy(home, tmp_path, "half.sel", "b")
    (tmp_path / "b").rename(tmp_path / "renamed")
    data = ("--data", f"s={tmp_path / 'half.sel'}", "--data", f"x={tmp_path / 'renamed'}")
    line = serve_fails(*data)
    content = Dataset.open(home / "a").content
    assert f"needs dataset a with content fingerprint {content}, which is not among --data" in line
    assert f"{tmp_path / 'a'} has no dataset" in line
    assert "give its folder with --data NAME=FOLDER" in line
    copy(home, tmp_path, "a")  # beside the file
    with Daemon(*data, "--bind", "tcp://127.0.0.1:0", "--workers", "1") as daemon:
        assert "of a, x, 3 classes" in daemon.ready
        with loader(daemon, "s") as source:
            assert len(take(source, 2)) == 2 * BATCH


def test_a_dataset_that_was_packed_anew_is_one_line(home: Path, tmp_path: Path) -> None:
    copy(home, tmp_path, "few.sel")
    shutil.copytree(home / "b", tmp_path / "a")
    line = serve_fails("--data", f"s={tmp_path / 'few.sel'}")
    assert f"{tmp_path / 'a'} is another one ({Dataset.open(home / 'b').content[:12]})" in line


@pytest.mark.parametrize("size_bytes", [9, 100, -1])
def test_a_truncated_selection_is_one_line(home: Path, tmp_path: Path, size_bytes: int) -> None:
    data = (home / "few.sel").read_bytes()
    (tmp_path / "few.sel").write_bytes(data[:size_bytes])
    line = serve_fails("--data", f"s={tmp_path / 'few.sel'}", "--data", f"a={home / 'a'}")
    assert str(tmp_path / "few.sel") in line
    assert "restore it or make it again (feeder select)" in line


def test_what_becomes_of_the_file_does_not_matter_until_a_node_process_restarts(
    home: Path, tmp_path: Path
) -> None:
    path = copy(home, tmp_path, "half.sel") / "half.sel"
    data = [f"{name}={home / name}" for name in ("a", "b")] + [f"s={path}"]
    options = [word for text in data for word in ("--data", text)]
    before = path.read_bytes()
    with Daemon(*options, "--bind", "tcp://127.0.0.1:0", "--workers", "2") as daemon:
        with loader(daemon, "s") as source:
            batches = iter(source)
            first = next(batches)
            os.truncate(path, 10)
            daemon.workers()[0].kill()  # its successor needs the selection, too
            rows = {number for batch in batches for number in batch.sample_ids.tolist()}
            expected = source.dataset.samples // BATCH * BATCH
            assert len(rows | {*first.sample_ids.tolist()}) == expected
        daemon.node.kill()
        daemon.wait_line(r"dataset s cannot be served: .*half.sel is not a selection, or is trunc")
        daemon.wait_line("serves again")
        with pytest.raises(PeerError, match="dataset s cannot be served"):
            loader(daemon, "s", timeout_s=2.0)
        with loader(daemon, "a") as source:
            take(source, 1)
        path.write_bytes(before)
        daemon.wait_line("dataset s can be served again: restarting")
        with loader(daemon, "s") as source:
            assert len(take(source, 1)) == BATCH


# --- In a store ---------------------------------------------------------------------------------


def test_only_the_pieces_that_a_selection_needs_are_fetched(tmp_path: Path) -> None:
    write_dataset(tmp_path / "published" / "noise")
    with serve_store(tmp_path / "published") as store:
        url = f"{store.url}/noise"
        pieces = [0, 3]
        ids = np.concatenate([np.arange(PIECE * n, PIECE * (n + 1)) for n in pieces])
        feeder.select("dense", {url: ids}, tmp_path / "dense.sel")
        feeder.select("sparse", {url: np.array([5, 70, 130, 290])}, tmp_path / "sparse.sel")
        options = (
            "--disk-path",
            tmp_path / "disk",
            "--bind",
            "tcp://127.0.0.1:0",
            "--workers",
            "2",
        )
        data = [f"{name}={tmp_path / name}.sel" for name in ("dense", "sparse")]
        with Daemon(*(w for t in data for w in ("--data", t)), *options) as daemon:
            for name, samples in (("sparse", 4), ("dense", len(ids))):
                before = store.sent_bytes()
                with loader(daemon, name, batch_size=4) as source:
                    rows = take(source)
                sent_bytes = store.sent_bytes() - before
                assert len(rows) == samples
                assert rows == make(tmp_path / f"{name}.sel", source.recipe, sorted(rows))
                assert sent_bytes < (samples + 4) * SAMPLE_BYTES, "not the samples beside them"
