"""Commands that take a selection where they take a dataset, and those that say they do not."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import feeder
from feeder.dataset.format import shard_name
from feeder.dataset.opened import Dataset
from tests.support.sources import call_feeder, error_line, make_source, pack


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset ``d`` and the selection ``s.sel`` of 9 of its samples."""
    folder = tmp_path_factory.mktemp("commands")
    pack(make_source(folder / "source", 23, side=72), folder / "d", shards=2)
    feeder.select("s", {folder / "d": np.arange(4, 22, 2)}, folder / "s.sel")
    return folder


def test_names_are_those_of_the_datasets(home: Path) -> None:
    result = call_feeder("names", home / "s.sel", "8", "0")
    with Dataset.open(home / "d") as dataset:
        assert result.stdout.splitlines() == [dataset.read_name(20), dataset.read_name(4)]
    beyond = call_feeder("names", home / "s.sel", "9")
    assert "has no sample 9, it has 0 .. 8" in error_line(beyond)


def test_verify_covers_the_file_and_all_of_each_dataset(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "d", tmp_path / "d")
    shutil.copy(home / "s.sel", tmp_path)
    result = call_feeder("verify", tmp_path / "s.sel", "--jobs", "1")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{tmp_path / 's.sel'} is whole: 9 samples of 1 dataset, content ")
    assert second.startswith(f"{tmp_path / 'd'} is whole: 23 samples in 2 shards, content ")
    shard = tmp_path / "d" / shard_name(1)
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(data)
    result = call_feeder("verify", tmp_path / "s.sel", "--jobs", "1")
    assert result.returncode == 3
    assert "damaged: " in result.stdout
    shutil.rmtree(tmp_path / "d")
    result = call_feeder("verify", tmp_path / "s.sel")
    assert "needs dataset d with content fingerprint" in error_line(result)


@pytest.mark.parametrize("more", [[], ["--boxes"], ["--split", "val"]])
def test_preview_draws_what_the_dataset_would(
    home: Path, tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes and pictures of samples are those that the dataset's have, but for their ids."""
    sheets = []

    def keep(pictures: np.ndarray, captions: list[str], path: Path, **fields: object) -> None:
        notes = fields["notes"]
        assert isinstance(notes, list)
        sheets.append((pictures, captions, [(note.facts, note.operations) for note in notes]))

    monkeypatch.setattr("feeder.cli.contact_sheet.draw_contact_sheet", keep)
    feeder.select("all", {home / "d": None}, tmp_path / "all.sel")
    for path in (home / "d", tmp_path / "all.sel"):
        result = call_feeder("preview", path, "--batch-size", "7", "--seed", "3", *more)
        assert result.returncode == 0, result.stderr
    plain, selected = sheets
    # The order depends on the samples, their bytes and the batch size, which are the same.
    assert (plain[0] == selected[0]).all()
    assert plain[1:] == selected[1:]


def test_preview_of_a_part_names_samples_by_their_ids_in_it(home: Path, tmp_path: Path) -> None:
    out = ("--batch-size", "7", "--out", tmp_path / "p.png")
    assert call_feeder("preview", home / "s.sel", *out).stdout.startswith("7 images in ")
    assert "samples than one batch of 10" in error_line(
        call_feeder("preview", home / "s.sel", "--batch-size", "10")
    )


@pytest.mark.parametrize("command", ["survey", "unpack"])
def test_other_commands_say_that_it_is_no_dataset(home: Path, tmp_path: Path, command: str) -> None:
    more = [tmp_path / "out"] if command == "unpack" else []
    line = error_line(call_feeder(command, home / "s.sel", *more))
    assert "s.sel is a file: a dataset is a folder (feeder pack); a selection" in line
