"""``feeder-bench decode`` on a tiny set: rows, classes, the comparison of pixels."""

import contextlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cli import main
from bench.machine import choose_core
from bench.micro import contenders
from bench.micro.classes import FEWEST, half_of
from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import version_beside
from tests.bench.rows import SAMPLES, check_ratios, run_bench

BASELINES: dict[str, str | None] = {
    "decode/full": None,
    "decode/tiled-against-libraries": "decode/full-libraries",
    "decode/tiled-against-pillow": "decode/pillow",
    "decode/tiled-against-turbojpeg": "decode/tiled-turbojpeg",
    "decode/tiled-against-unscaled": "decode/tiled-unscaled",
    "sample/full": None,
    "sample/whole-against-libraries": "sample/full-libraries",
    "sample/whole-against-limit": "sample/limit",
    "sample/whole-against-pillow": "sample/pillow",
    "sample/whole-against-turbojpeg": "sample/tiled-turbojpeg",
    "sample/whole-against-unscaled": "sample/whole-unscaled",
    "sample/whole-turbojpeg": "sample/full",
    "sample/centre": "sample/whole",
    "sample/decoded-cache": "sample/whole",
    "sample/decoded-cache-unscaled": "sample/whole-unscaled",
    "sample/decoded-cache-against-unscaled": "sample/decoded-cache-unscaled",
    "sample/filling-cache": "sample/whole",
    "sample/limit": None,
    "stage/rest": None,
    "limit/entropy": "decode/tiled",
    **{f"stage/{stage}": f"limit/{stage}" for stage in ("read", "decode", "resize")},
    **{f"limit/{stage}": None for stage in ("read", "decode", "resize")},
    **{f"stage/{stage}-turbojpeg": None for stage in ("read", "join", "decode", "resize", "rest")},
    **{
        f"{what}/{way}": f"{what}/full"
        for what, ours in (("decode", "tiled"), ("sample", "whole"))
        for way in (ours, f"{ours}-unscaled", "full-libraries", "pillow", "tiled-turbojpeg")
    },
    **{f"decode/tiled-{version}": "decode/tiled-turbojpeg" for version in VERSIONS},
    **{
        f"sample/whole-{version}": f"sample/tiled-turbojpeg-{version_beside(version)}"
        for version in VERSIONS
    },
}


@pytest.fixture(scope="module")
def run(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The JSON and the text of a run of one round."""
    before = os.sched_getaffinity(0)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        document = run_bench(
            tmp_path_factory.mktemp("run"), "decode", dataset, "--rounds", 1, "--all"
        )
    assert os.sched_getaffinity(0) == before
    return document, printed.getvalue()


def test_rates_and_their_baselines(run: tuple[dict[str, Any], str]) -> None:
    document, text = run
    rows = {row["name"]: row for row in document["results"]}
    rates = {
        name: row["baseline"]
        for name, row in rows.items()
        if row["unit"] == "images/s" and name.count("/") == 1
    }
    resized = {f"sample/tiled-turbojpeg-{version_beside(version)}" for version in VERSIONS}
    assert rates == BASELINES | dict.fromkeys(resized)
    assert all(rows[name]["value"] > 0 for name in rates)
    check_ratios(rows)
    stages = sum(
        1 / rows[f"stage/{name}"]["value"] for name in ("read", "decode", "resize", "rest")
    )
    assert stages == pytest.approx(1 / rows["sample/whole"]["value"])
    kernels = sum(1 / rows[f"limit/{name}"]["value"] for name in ("decode", "resize"))
    assert kernels == pytest.approx(1 / rows["sample/limit"]["value"])
    assert "training samples/s on one core" in text.splitlines()[0]
    assert re.search(r"^sample/whole .*× sample/full$", text, re.MULTILINE)
    assert document["machine"]["cores_used"] == {"all contenders": choose_core(None)}
    assert document["measured"]["images"] == SAMPLES


def test_other_rows(run: tuple[dict[str, Any], str], dataset: Path) -> None:
    rows = {row["name"]: row for row in run[0]["results"]}
    with Dataset.open(dataset) as opened:
        blobs = opened.read_records(np.arange(SAMPLES))["blob_bytes"]
    assert rows["dataset/blob"]["value"] == np.mean(blobs)
    assert rows["dataset/blob"]["baseline"] == "dataset/jpeg"
    assert rows["dataset/images"]["value"] == rows["check/equal-to-pillow"]["value"] == SAMPLES
    assert rows["decoded-cache/size"]["value"] > rows["dataset/size"]["value"] * 4
    filling = rows["sample/whole"]["value"] / rows["sample/filling-cache"]["value"]
    assert rows["decoded-cache/fill"]["value"] == pytest.approx(100 * (filling - 1))
    quality = {name.partition("-psnr")[2] for name in rows if name.startswith("quality/")}
    assert quality in (set(), {"", "-p5", "-p25", "-p50", "-p75", "-p95"})
    for name in ("decoded-cache/filled", "crops/scaled"):
        assert rows[name]["unit"] == "%"
        assert 0 <= rows[name]["value"] <= 100


def test_classes_have_rows_and_a_table(run: tuple[dict[str, Any], str], dataset: Path) -> None:
    rows = {row["name"]: row for row in run[0]["results"]}
    table = run[1].partition("µs an image by class")[2]
    with Dataset.open(dataset) as opened:
        kinds = opened.read_records(np.arange(SAMPLES))["subsampling"]
        halves = [half_of(opened.name_of(each) or "") for each in range(SAMPLES)]
    counts = {kind.name.lower(): np.count_nonzero(kinds == kind) for kind in Subsampling}
    counts |= {half: halves.count(half) for half in ("tune", "held-out")}
    assert counts["tune"] + counts["held-out"] == SAMPLES
    assert counts["s444"] >= FEWEST
    for name, count in counts.items():
        measured = count >= FEWEST
        assert (f"sample/whole/{name}" in rows) == (f"\n{name} " in table) == measured
        if not measured:
            continue
        assert rows[f"dataset/images/{name}"]["value"] == count
        assert rows[f"dataset/blob/{name}"]["baseline"] == f"dataset/jpeg/{name}"
        for what, way in (("decode", "tiled"), ("sample", "whole")):
            for ours in (f"{what}/{way}", f"{what}/tiled-turbojpeg"):
                assert rows[f"{ours}/{name}"]["baseline"] == f"{what}/full/{name}"
            against = rows[f"{what}/{way}-against-turbojpeg/{name}"]
            assert against["baseline"] == f"{what}/tiled-turbojpeg/{name}"
            assert f" {against['ratio']:.2f}" in table
    assert max(len(line) for line in table.splitlines()) <= 80


def test_pixels_that_differ_end_the_bench_and_name_the_sample(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resize_rightly = contenders.resize_pack_reference

    def resize_wrongly(*arguments: object, **named: object) -> None:
        resize_rightly(*arguments, **named)  # type: ignore[arg-type]
        named["out"][3, 5, 1] ^= 1  # type: ignore[index]

    monkeypatch.setattr(contenders, "resize_pack_reference", resize_wrongly)
    assert main(["decode", str(dataset), "--rounds", "1"]) == 3
    error = capsys.readouterr().err
    assert "sample/full does not give the pixels of Pillow's resize" in error
    assert ".jpg) in shard-" in error


def test_without_a_dataset_it_makes_one_and_removes_it_and_may_decode_by_turbojpeg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "rows.json"
    options = ["--rounds", "1", "--decoder", "turbojpeg", "--json", str(out)]
    assert main(["decode", "--images", "11", *options]) == 0
    assert "  images: 11\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]
    document = json.loads(out.read_text())
    assert document["machine"]["decoder"] == "turbojpeg"
    names = {row["name"] for row in document["results"]}
    assert names >= {"stage/join", *(f"sample/whole-{version}" for version in VERSIONS)}


def test_errors_are_one_line(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, status, message in (
        ("--core 99999", 2, "--core 99999"),
        ("--images 4 --rounds 1 --json /none/x", 4, "cannot write the results"),
    ):
        assert main(["decode", str(dataset), *options.split()]) == status
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("feeder-bench: error: ")
        assert message in error
