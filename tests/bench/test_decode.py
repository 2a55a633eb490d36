"""``feeder-bench decode`` on a tiny set: rows, classes, compared pixels; its text and picture."""

import contextlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cli import main
from bench.machine import choose_core
from bench.micro import contenders
from bench.micro.classes import FEWEST, half_of
from bench.micro.decode_report import DecodeReport
from bench.report import RATE, Result, compare, single
from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import version_beside
from tests.bench.rows import SAMPLES, check_ratios, draw, run_bench

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
    assert rows["crops/together"]["baseline"] == "crops/apart"
    assert 0 < rows["crops/decoded"]["value"] < 70
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


ROUNDS = (0.98, 0.99, 1.0, 1.01, 1.02)

RATES: Mapping[str, float] = {
    "decode/full": 800,
    "decode/full-libraries": 780,
    "decode/pillow": 600,
    "decode/tiled": 3600,
    "decode/tiled-turbojpeg": 1600,
    "decode/tiled-unscaled": 3500,
    "sample/full": 750,
    "sample/full-libraries": 650,
    "sample/pillow": 550,
    "sample/whole": 2750,
    "sample/tiled-turbojpeg": 1400,
    "sample/whole-unscaled": 2500,
    "sample/decoded-cache": 7000,
    "sample/decoded-cache-unscaled": 7000,
    "sample/filling-cache": 2750,
}

AGAINST = {
    "decode/tiled-against-pillow": "decode/pillow",
    "decode/tiled-against-turbojpeg": "decode/tiled-turbojpeg",
    "sample/whole-against-pillow": "sample/pillow",
    "sample/whole-against-libraries": "sample/full-libraries",
    "sample/whole-against-turbojpeg": "sample/tiled-turbojpeg",
    "sample/whole-against-unscaled": "sample/whole-unscaled",
    "sample/decoded-cache-against-unscaled": "sample/decoded-cache-unscaled",
    "sample/filling-cache": "sample/whole",
}


def _report(*, small: float = 2.0, size: float = 1.0, **changed: float) -> DecodeReport:
    """Return a report of the rates with ``changed`` ones.

    ``small`` is the gain of small images; ``size`` the ratio of the blobs' bytes to those of JPEGs.
    """
    rates = {**RATES, **{f"sample/{name.replace('_', '-')}": r for name, r in changed.items()}}
    values = {name: [rate * factor for factor in ROUNDS] for name, rate in rates.items()}
    whole = [rates["sample/whole"] * factor for factor in ROUNDS[::-1]]  # not in step with others
    kinds = {name: f"{name.partition('/')[0]}/full" for name in values}
    rows = [
        *compare(values, RATE, {**kinds, "decode/full": None, "sample/full": None}),
        *compare(values | {"sample/whole": whole}, RATE, AGAINST),
        *compare({"dataset/jpeg": [100_000], "dataset/blob": [size * 100_000]}, "bytes/image"),
        single("crops/scaled", "%", 3.5),
    ]
    name = "sample/whole-against-turbojpeg/small"
    rows.append(Result(name=name, value=1, unit=RATE, min=1, max=1, baseline="x", ratio=small))
    machine = {
        "cpu": "Test CPU",
        "cores_used": {"all contenders": 3},
        "decoder": "own (avx2)",
        "libraries": {"libjpeg-turbo": "2.1.5", "pillow": "12.1"},
    }
    measured = {"images": 201, "rounds": 5}
    return DecodeReport(bench="decode", machine=machine, results=rows, measured=measured)


def test_conclusion_is_first_and_names_winner_ratios_and_spread() -> None:
    text = " ".join(_report().to_text().split())
    assert text.startswith("Feeder is the fastest: 2,750 training samples/s on one core, 3.67 (")
    assert "times as many as with TurboJPEG's full decode" in text
    assert "5.00 (4.80–5.20) times as many as Pillow alone." in text
    assert "4.50 (4.50–4.50) times as fast as TurboJPEG decodes the whole image" in text
    assert "6.00 (6.00–6.00) times Pillow, and 2.25 (2.25–2.25) times TurboJPEG on the same" in text
    assert "medians of 5 rounds; ratios are of the same rounds. In brackets: the 90 % " in text
    assert "cores used: all contenders 3 decoder: own (avx2)" in text
    assert "Where it loses" not in text
    assert "TurboJPEG, whole image 800 784–816 1 " in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pillow": 5500}, "Pillow alone is the fastest; Feeder, 0.50 (0.48–0.52) of it, makes"),
        ({"pillow": 2750}, "Feeder is as fast as Pillow alone within the noise, 1.00 (0.96–1.04)"),
        ({"small": 1.2}, "small gain over TurboJPEG on the same tiles (small 1.20)"),
        ({"size": 1.04}, "the dataset takes 1.04 times the bytes of ordinary JPEGs"),
        ({"whole_unscaled": 5500}, "DCT scaling gives 0.50 (0.48–0.52) of the rate without it"),
        ({"filling_cache": 2200}, "an empty decoded cache leaves 0.80 (0.77–0.83) of the rate"),
    ],
)
def test_the_fastest_and_each_loss_beyond_the_noise_is_named(
    changed: Mapping[str, Any], words: str
) -> None:
    assert words in " ".join(_report(**changed).conclude())


def test_the_picture_shows_all_ways(tmp_path: Path) -> None:
    drawn = draw(_report(), tmp_path)
    for words in ("PyTurboJPEG, whole image", "images/s: bar the median", "Test CPU"):
        assert words in drawn
