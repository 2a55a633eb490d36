"""``feeder-bench decode`` on a tiny set: rows, classes, the comparison of pixels."""

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cli import main
from bench.machine import choose_core
from bench.micro import cached, contenders, decode, quality
from bench.micro.classes import FEWEST, half_of
from bench.micro.contenders import PreparedSamples
from bench.micro.quality import measure_scaling
from bench.micro.stages import StageLimits
from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import VERSIONS, describe_decoder
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import version_beside
from feeder.plan.recipe import Recipe
from tests.bench.rows import check_ratios, run_bench
from tests.support.hard_jpegs import hard_jpeg
from tests.support.sources import pack
from tests.support.synthetic_sets import pack_synthetic

SAMPLES = 37

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
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("decode"), images=SAMPLES)


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
    lines = text.splitlines()
    assert "training samples/s on one core" in lines[0]
    assert any(line.startswith("sample/whole ") and "× sample/full" in line for line in lines)
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


def test_half_of_a_name_does_not_depend_on_the_dataset() -> None:
    names = [f"n{number:08}/{number}.JPEG" for number in range(500)]
    assert half_of("n01440764/n01440764_10026.JPEG") == "held-out"
    assert 200 < sum(half_of(name) == "tune" for name in names) < 300


def test_quality_of_scaled_crops_is_their_psnr(dataset: Path) -> None:
    """At 64 px most crops are scaled; the figures must agree with the two recipes' pixels."""
    ids = np.arange(SAMPLES)
    recipe = Recipe.for_split("train", batch_size=SAMPLES, image_size=64)
    with Dataset.open(dataset) as opened:
        rows = {row.name: row for row in measure_scaling(opened, recipe, ids)}
        assert rows["quality/scaled-crops"].value > quality.EPOCHS * SAMPLES / 4
        mean = rows["quality/scaled-psnr"]
        assert 25 < mean.min < rows["quality/scaled-psnr-p50"].value < mean.max <= 100
        unscaled = Recipe.for_split("train", batch_size=8, image_size=64, dct_scaling=False)
        assert measure_scaling(opened, unscaled, ids) == []


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


def test_our_pixels_that_differ_from_turbojpegs_end_the_bench(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = decode.SampleReader.fill

    def fill_wrongly(self: decode.SampleReader, *arguments: object, **named: object) -> None:
        fill(self, *arguments, **named)  # type: ignore[arg-type]
        if self._decoder == "turbojpeg":
            named["pixels"][2, 5, 1] ^= 1  # type: ignore[index]

    monkeypatch.setattr(decode.SampleReader, "fill", fill_wrongly)
    assert main(["decode", str(dataset), "--rounds", "1"]) == 3
    error = capsys.readouterr().err
    assert "sample/whole does not give the pixels of sample/whole-turbojpeg" in error


def test_pillow_makes_the_same_samples(dataset: Path) -> None:
    """From the same crops; within 1, because its decoder may be of another version."""
    recipe = Recipe.for_split("train", batch_size=SAMPLES)
    with (
        Dataset.open(dataset) as opened,
        PreparedSamples(opened, recipe, np.arange(SAMPLES)) as samples,
    ):
        samples.decode_pillow(0, SAMPLES)
        samples.sample_pillow(0, SAMPLES)
        by_pillow = samples.pixels[:SAMPLES].astype(int)
        samples.pixels[:] = 0
        samples.sample_full(0, SAMPLES)
        assert np.abs(by_pillow - samples.pixels[:SAMPLES]).max() <= 1
        # An ordinary JPEG has no restart interval, and the true size.
        for jpeg, *size in zip(
            samples.jpegs, samples.heights.tolist(), samples.widths.tolist(), strict=True
        ):
            assert b"\xff\xdd" not in jpeg[:700]
            sof = jpeg.index(b"\xff\xc0")
            assert [int.from_bytes(jpeg[sof + at : sof + at + 2]) for at in (5, 7)] == size


def test_limits_resize_the_picture_that_they_decoded(tmp_path: Path) -> None:
    """Also where our decoder leaves the image to TurboJPEG."""
    kinds = ("4:2:0", "4:1:1", "4:4:0", "rgb")
    (tmp_path / "source" / "class").mkdir(parents=True)
    for number, kind in enumerate(kinds):
        jpeg = hard_jpeg(number, kind, 70, 60, 80)
        (tmp_path / "source" / "class" / f"{number}.jpg").write_bytes(jpeg)
    pack(tmp_path / "source", tmp_path / "dataset")
    recipe = Recipe.for_split("train", batch_size=1, image_size=32)
    with (
        Dataset.open(tmp_path / "dataset") as opened,
        PreparedSamples(opened, recipe, np.arange(len(kinds))) as samples,
    ):
        limits = StageLimits(samples, recipe.image_size)
        for row in range(len(kinds)):
            limits.measure(row, row + 1)
            samples.sample_tiled_turbojpeg(row, row + 1)
            assert np.array_equal(limits._out, samples.pixels[0])


def test_without_a_dataset_it_makes_one_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["decode", "--images", "11", "--rounds", "1"]) == 0
    assert "Measured: 11 images" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 3, "nowhere"),
        (["{dataset}", "--core", "99999"], 2, "--core 99999"),
        (
            ["{dataset}", "--images", "4", "--rounds", "1", "--json", "/none/x"],
            4,
            "cannot write the results",
        ),
    ],
)
def test_errors_are_one_line(
    dataset: Path,
    arguments: list[str],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["decode", *(each.format(dataset=dataset) for each in arguments)]) == status
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("feeder-bench: error: ")
    assert message in error


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_product_is_what_is_measured_with_the_decoder_asked_for(
    dataset: Path, tmp_path: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reader that no row names otherwise has the decoder, and the names of rows stay."""
    made: list[str] = []
    calls: list[int] = []
    init, fill = decode.SampleReader.__init__, decode.SampleReader.fill

    def recorded(self: decode.SampleReader, *arguments: object, **named: object) -> None:
        if "vectors" not in named:
            made.append(str(named.get("decoder", "unnamed")))
        init(self, *arguments, **named)  # type: ignore[arg-type]

    def counted(self: decode.SampleReader, sample_ids: np.ndarray, **named: object) -> None:
        calls.append(len(sample_ids))
        fill(self, sample_ids, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(decode.SampleReader, "__init__", recorded)
    monkeypatch.setattr(decode.SampleReader, "fill", counted)
    monkeypatch.setattr(decode, "measure_scaling", lambda *_: [])  # it times nothing
    options = ("--images", 7, "--rounds", 3, "--decoder", decoder)
    document = run_bench(tmp_path, "decode", dataset, *options)
    # The cache is filled, at full size and in a few epochs at other scales; then the readers are
    # compared (the first one with Pillow's pixels and with TurboJPEG's), warmed up and measured.
    # The last is the centre crops' reference.
    readers = 7 + len(VERSIONS if decoder == "turbojpeg" else VERSIONS[:-1])
    filling = 7 * (1 + cached._SCALED_EPOCHS)
    assert calls == [1] * filling + [7] * (1 + readers * (1 + 1 + 3) + 1)
    references = 2  # sample/whole-turbojpeg, and that of sample/centre
    assert "unnamed" not in made
    assert made.count("turbojpeg") == (len(made) if decoder == "turbojpeg" else references)
    assert document["machine"]["decoder"] == describe_decoder(decoder)
    names = {row["name"] for row in document["results"]}
    assert names >= {f"sample/whole-{version}" for version in VERSIONS}
    assert ("stage/join" in names) == (decoder == "turbojpeg")
