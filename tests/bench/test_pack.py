"""``feeder-bench pack``: its sources, its turns, and its rows of kinds and writers."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.pack import run as bench_pack
from bench.pack import sources
from bench.pack.run import PHASES, Writer
from bench.pack.sources import KINDS, prepare_material, write_source
from bench.rivals.catalogue import SCRIPTS
from feeder.dataset.opened import Dataset
from tests.bench.fake_rival import make_environment
from tests.bench.rows import check_ratios, run_bench
from tests.support.sources import make_source, pack, run_inline

_IMAGES = 17
_FAKE_WRITER = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(SCRIPTS)!r})
from protocol import serve_writing

def write(work):
    if work.variant == "crash":
        raise SystemExit("fake: there is no such library")
    print("a line outside the protocol")
    work.folder.write_bytes(b"".join(Path(path).read_bytes() for path in work.paths))
    return {{"fake": "1.2"}}

serve_writing(write)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "source"
    make_source(folder, 7)
    (folder / "class1" / "words.txt").write_text("no image")
    return folder


def _writer(folder: Path, variant: str, environment: str = "fake") -> Writer:
    """Return a writer that really copies, or has the fault ``variant``."""
    script = folder / "fake_writer.py"
    script.write_text(_FAKE_WRITER)
    return Writer(variant, script, environment, variant, "copies")


def _samples(dataset: Path) -> list[tuple[str, int]]:
    """Return class and source checksum of all samples, sorted."""
    with Dataset.open(dataset) as opened:
        records = opened.read_records(np.arange(opened.layout.samples))
        return sorted(
            (opened.classes[int(record["label"])], int(record["source_checksum"]))
            for record in records
        )


def test_every_kind_of_source_holds_the_same_images_and_classes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard", reason="make test installs zstandard")
    run_inline(monkeypatch, "pack.run", "pack.containers")
    monkeypatch.setattr(sources, "IMAGES_IN_FILE", 10)
    with prepare_material(source, images=_IMAGES, distinct=1) as material:
        assert (len(material.images), material.distinct) == (_IMAGES, 7)
        found = {}
        for kind in KINDS:
            written = write_source(kind, material)
            pack(written, tmp_path / kind)
            found[kind] = _samples(tmp_path / kind)
    assert len(found["folder"]) == _IMAGES
    tars = {"tar", "tar.gz", "tar.zst"}  # their classes are numbers
    numbers = {name: str(label) for label, name in enumerate(material.classes)}
    as_numbers = sorted((numbers[name], checksum) for name, checksum in found["folder"])
    for kind in KINDS:
        assert found[kind] == (as_numbers if kind in tars else found["folder"]), kind
    assert not material.folder.exists()


def test_kinds_and_writers_have_rows_or_reasons(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environments = tmp_path / "environments"
    make_environment(environments)
    writers = (
        _writer(tmp_path, "fine"),
        _writer(tmp_path, "crash"),
        _writer(tmp_path, "absent", "nowhere"),
    )
    monkeypatch.setattr(bench_pack, "WRITERS", writers)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    options = ("--images", _IMAGES, "--rounds", 1, "--environments", environments)
    before = os.sched_getaffinity(0)
    report = run_bench(
        tmp_path, "pack", source, *options, "--kinds", "tar,tar.zst,fine,crash,absent"
    )
    assert os.sched_getaffinity(0) == before
    assert report["machine"]["images"]["packed"] == _IMAGES
    rows = {row["name"]: row for row in report["results"]}
    for kind in ("pack/folder", "pack/tar"):
        assert rows[kind]["unit"] == "images/s"
        assert rows[f"{kind}/cpu"]["unit"] == "images/s of CPU time"
        total_s = sum(rows[f"{kind}/{phase}"]["value"] for phase in PHASES)
        assert total_s == pytest.approx(_IMAGES / rows[kind]["value"])
        assert all(rows[f"{kind}/{phase}"]["value"] > 0 for phase in PHASES)
    check_ratios(rows)
    assert rows["writer/fine"]["baseline"] == "pack/folder"
    assert rows["writer/fine"]["value"] > rows["pack/folder"]["value"]
    images_mb = rows["pack/folder/source"]["value"]
    assert rows["writer/fine/size"]["value"] == images_mb > 0
    for name in ("pack/folder", "pack/tar", "writer/fine"):
        size = rows[f"{name}/size"]
        assert size["baseline"] == "pack/folder/source"

    notes = {each["name"]: each for each in report["contenders"]}
    assert notes["writer/fine"]["versions"] == {"fake": "1.2"}
    missing = {name: each["missing"] for name, each in notes.items() if each["missing"]}
    assert missing == {
        "pack/tar.zst": "needs the package zstandard, which is not installed",
        "writer/crash": "ended with status 1: fake: there is no such library",
        "writer/absent": "not installed: run `make peers`",
    }
    text = capsys.readouterr().out
    for name in notes:
        assert name in text
    for reason in (*missing.values(), "fake 1.2: copies"):
        assert reason in text
