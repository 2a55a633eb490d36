"""Repacking: the same dataset in today's format, after any interruption, and OLD untouched."""

import hashlib
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from feeder.dataset.files import LocalShard
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_NAME,
    WORK_FOLDER_NAME,
    load_manifest,
)
from feeder.dataset.reader import ShardReader
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.crop_decode import check_blob
from feeder.pack.task_pool import Messages
from feeder.pack.unpack import unpack_dataset
from feeder.pack.verify import verify_dataset
from feeder.repack import format2
from feeder.repack.run import RepackSummary, repack_dataset
from feeder.survey.duplicates import DUPLICATES_NAME
from tests.support.sources import (
    call_feeder,
    error_line,
    feeder_command,
    file_tree,
    make_source,
    pack,
    run_here,
    run_inline,
    silent,
)

DATASETS = Path(__file__).parent / "format2"
_KEPT = ("label", "width", "height", "subsampling", "flags", "source_checksum")

KILL_AT_A_RENAME = """
import os, signal, sys

def kill(event, arguments):
    global renames
    if event == "os.rename" and str(arguments[1]).startswith(os.environ["NEW"]):
        renames += 1
        if renames == int(os.environ["RENAMES"]):
            is_worker = "feeder.pack.task_pool" in sys.orig_argv
            os.kill(os.getppid() if is_worker else os.getpid(), signal.SIGKILL)
            signal.pause()

renames = 0
sys.addaudithook(kill)
"""


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "repack.run", "pack.verify", "pack.unpack")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A dataset of format 2 with 14 samples in 5 shards."""
    return Path(shutil.copytree(DATASETS / "index", tmp_path / "old"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that ``old`` becomes, without interruption."""
    path = tmp_path_factory.mktemp("reference") / "new"
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, "repack.run")
        _repack(DATASETS / "index", path)
    return file_tree(path)


def _repack(old: Path, new: Path, *, jobs: int = 1) -> RepackSummary:
    return repack_dataset(old, new, jobs=jobs, progress=silent())


def _flip(content: bytes, at: int) -> bytes:
    flipped = bytearray(content)
    flipped[at] ^= 1
    return bytes(flipped)


class _Sample(NamedTuple):
    """What a shard holds of a sample beside its blob, whatever the version."""

    shard: str
    name: str
    fields: tuple[int, ...]
    label_row: bytes


def _samples(dataset: Path, *, version: int) -> list[_Sample]:
    samples = []
    for path in sorted(dataset.glob("*.fds")):
        reader = ShardReader(LocalShard(path), version=version)
        index = reader.read_index()
        reader.close()
        records = index.records.view(format2.RECORD) if version == 2 else index.records
        for record, label_row in zip(records, index.label_rows, strict=True):
            start = int(record["name_offset"])
            name = index.names[start : start + int(record["name_bytes"])].decode()
            fields = tuple(int(record[field]) for field in _KEPT)
            samples.append(_Sample(path.name, name, fields, label_row.tobytes()))
    return samples


@pytest.mark.parametrize("kind", ["index", "multi", "float", "none"])
def test_dataset_of_each_kind_of_labels_is_repacked_without_loss(
    kind: str, tmp_path: Path, inline: None
) -> None:
    old, new = DATASETS / kind, tmp_path / "new"
    before = file_tree(old)
    summary = _repack(old, new)
    assert file_tree(old) == before
    former, manifest = format2.load_former(old), load_manifest(new)
    assert summary.manifest == manifest
    assert summary.repacked == manifest.samples
    assert manifest.former == former.former
    for field in set(msgspec.structs.asdict(former)) - {"content", "fingerprint", "shards"}:
        assert getattr(manifest, field) == getattr(former, field), field
    assert [e.samples for e in manifest.shards] == [e.samples for e in former.shards]
    assert _samples(new, version=3) == _samples(old, version=2)
    for name in (QUARANTINE_NAME, DUPLICATES_NAME):
        assert (new / name).read_bytes() == before[name]
    assert list(verify_dataset(new, jobs=1, progress=silent())[1]) == []
    assert not (new / WORK_FOLDER_NAME).exists()
    unpack_dataset(new, tmp_path / "out", jobs=1, force=False, progress=silent())
    lines = [
        f"{hashlib.blake2b(data, digest_size=16).hexdigest()}  {name}"
        for name, data in file_tree(tmp_path / "out").items()
    ]
    expected = (DATASETS / f"{kind}.b2sum").read_text("utf-8").splitlines()
    assert sorted(lines) == sorted(expected), "unpacked files are the same as before"


def test_content_is_that_of_the_source_packed_again(
    old: Path, tmp_path: Path, inline: None
) -> None:
    repacked = _repack(old, tmp_path / "new").manifest
    options: dict[str, Any] = {"shards": 5, "seed": 7, "tile_width_px": 16}
    packed = pack(DATASETS / "source", tmp_path / "packed", **options).manifest
    assert packed.content == repacked.content
    assert packed.shards == repacked.shards, "the very same bytes"
    assert packed.fingerprint != repacked.fingerprint, "only one was repacked"


def test_kills_only_cost_a_resumption(
    old: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    """SIGKILL before the first rename of the command or its worker, then before the second, …"""
    (tmp_path / "sitecustomize.py").write_text(KILL_AT_A_RENAME)
    new = tmp_path / "new"
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    for renames in range(1, 20, 2):
        done = subprocess.run(
            feeder_command("repack", old, new, "--jobs", "1"),
            env={**os.environ, "PYTHONPATH": path, "RENAMES": str(renames), "NEW": str(new)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        with pytest.raises(DatasetError, match="is unfinished"):
            load_manifest(new)
    assert renames > 5
    assert done.stdout.startswith(f"repacked 14 images into {new}: 5 shards\n".encode())
    assert file_tree(new) == reference


def test_finished_shards_are_not_repeated_and_processes_change_nothing(
    old: Path, tmp_path: Path, reference: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_two(*arguments: Any, **named: Any) -> Messages:
        yield from itertools.islice(run_here(*arguments, **named), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        run_inline(patch, "repack.run", run=stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            _repack(old, tmp_path / "new")
    assert _repack(old, tmp_path / "new", jobs=2).repacked == 14 - 3 - 3
    assert file_tree(tmp_path / "new") == reference


def test_damage_is_an_error_that_names_what_is_damaged_and_nothing_is_published(
    old: Path, tmp_path: Path, reference: dict[str, bytes], inline: None
) -> None:
    path, new = old / "shard-00001.fds", tmp_path / "new"
    name = _samples(old, version=2)[3].name
    quarantine, manifest = old / QUARANTINE_NAME, old / MANIFEST_NAME
    blob = "(its checksum does not match): restore it, or pack the source again"
    mismatch = f"{path} does not match the manifest; restore it"
    whole = path.read_bytes()
    for file, content, error in (
        (path, _flip(whole, 300), f"sample 3 ({name}) in {path} is damaged {blob}"),
        (path, _flip(whole, -3), mismatch),
        (path, _flip(whole, 20), f"{path} has a damaged header"),
        (path, (old / "shard-00002.fds").read_bytes(), mismatch),
        (path, (DATASETS / "none" / "shard-00001.fds").read_bytes(), mismatch),
        (path, reference["shard-00001.fds"], f"{path} has a damaged header"),
        (quarantine, _flip(quarantine.read_bytes(), 5), f"{quarantine} is damaged"),
        (manifest, _flip(manifest.read_bytes(), 200), f"{manifest} is damaged"),
    ):
        before = file.read_bytes()
        file.write_bytes(content)
        line = error_line(done := call_feeder("repack", old, new))
        assert done.returncode == 3
        assert line.startswith(f"feeder: error: {error}")
        assert not new.exists() or [each.name for each in new.iterdir()] == [WORK_FOLDER_NAME]
        file.write_bytes(before)
    _repack(old, new)
    assert file_tree(new) == reference


def test_blob_that_does_not_keep_its_coefficients_is_an_error(
    old: Path, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "feeder.repack.run.check_blob",
        lambda blob: (check_blob(blob)[0] ^ 1, *check_blob(blob)[1:]),
    )
    with pytest.raises(DatasetError, match=r"sample 0 \(.*\) in .* has different coefficients"):
        _repack(old, tmp_path / "new")


def test_impossible_requests_are_refused(old: Path, tmp_path: Path, inline: None) -> None:
    new = tmp_path / "new"
    for inside in (old, old / "new"):
        with pytest.raises(ConfigError, match="is inside the dataset"):
            _repack(old, inside)
    _repack(old, new)
    with pytest.raises(ConfigError, match="new is a complete dataset already"):
        _repack(old, new)
    with pytest.raises(ConfigError, match=r"new has dataset format version 4 already: use it"):
        _repack(new, tmp_path / "newer")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").touch()
    with pytest.raises(ConfigError, match="full is not empty"):
        _repack(old, tmp_path / "full")


def test_beginnings_of_packing_and_repacking_are_not_mixed(
    old: Path, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path / "source", 5)
    monkeypatch.setattr("feeder.pack.run.publish_parts", _stop)
    monkeypatch.setattr("feeder.repack.run.publish_shards", _stop)
    with pytest.raises(KeyboardInterrupt):
        _repack(old, tmp_path / "repacking")
    with pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "packing")
    with pytest.raises(ConfigError, match="holds the beginning of a repacking: run the command"):
        pack(source, tmp_path / "repacking")
    for folder, what in (("packing", "another packing"), ("repacking", "a repacking")):
        with pytest.raises(ConfigError, match=f"holds the beginning of {what}: run the command"):
            _repack(DATASETS / "none", tmp_path / folder)


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
