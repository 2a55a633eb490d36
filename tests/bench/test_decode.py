"""``feeder-bench decode`` on a tiny set: rows, JSON, the comparison of pixels."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bench.cli import main
from bench.data.synthetic import write_synthetic
from bench.machine import choose_core
from bench.micro import cached, contenders, decode, quality
from bench.micro.classes import FEWEST, half_of
from bench.micro.contenders import PreparedSamples
from bench.micro.decode_report import AllRowsReport
from bench.micro.limits import StageLimits
from bench.micro.pillow_samples import PillowSamples
from bench.micro.quality import measure_scaling
from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import VERSIONS, describe_decoder
from feeder.jpeg.decoders import DECODERS, Decoder
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import version_beside
from feeder.plan.recipe import Recipe
from tests.support.hard_jpegs import hard_jpeg
from tests.support.sources import pack
from tests.support.synthetic_sets import pack_synthetic

SAMPLES = 37

TURBOJPEG_STAGES = ("read", "join", "decode", "resize", "rest")


def _blob_sizes(dataset: Path) -> list[int]:
    with Dataset.open(dataset) as opened:
        sizes: list[int] = opened.read_records(np.arange(SAMPLES))["blob_bytes"].tolist()
    return sizes


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("decode"), images=SAMPLES)


def test_names_and_baselines_of_rows(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "decode.json"
    before = os.sched_getaffinity(0)
    assert main(["decode", str(dataset), "--rounds", "2", "--all", "--json", str(out)]) == 0
    assert os.sched_getaffinity(0) == before
    report = json.loads(out.read_text())
    assert report["bench"] == "decode"
    assert report["machine"]["cores_used"] == {"all contenders": choose_core(None)}
    rows = {row["name"]: row for row in report["results"]}
    assert {
        row["unit"] for name, row in rows.items() if name.split("/")[0] in ("decode", "sample")
    } == {"images/s"}
    for name, baseline in (
        ("decode/full", None),
        ("decode/tiled", "decode/full"),
        ("decode/full-libraries", "decode/full"),
        ("decode/pillow", "decode/full"),
        ("decode/tiled-unscaled", "decode/full"),
        ("decode/tiled-against-pillow", "decode/pillow"),
        ("decode/tiled-against-unscaled", "decode/tiled-unscaled"),
        ("decode/tiled-turbojpeg", "decode/full"),
        ("decode/tiled-against-libraries", "decode/full-libraries"),
        ("decode/tiled-against-turbojpeg", "decode/tiled-turbojpeg"),
        *((f"decode/tiled-{version}", "decode/tiled-turbojpeg") for version in VERSIONS),
        ("sample/full", None),
        ("sample/full-libraries", "sample/full"),
        ("sample/pillow", "sample/full"),
        ("sample/whole", "sample/full"),
        ("sample/whole-against-pillow", "sample/pillow"),
        ("sample/whole-against-unscaled", "sample/whole-unscaled"),
        ("sample/whole-unscaled", "sample/full"),
        ("sample/whole-turbojpeg", "sample/full"),
        ("sample/whole-against-libraries", "sample/full-libraries"),
        ("sample/whole-against-turbojpeg", "sample/tiled-turbojpeg"),
        *(
            (f"sample/whole-{version}", f"sample/tiled-turbojpeg-{version_beside(version)}")
            for version in VERSIONS
        ),
        ("sample/tiled-turbojpeg", "sample/full"),
        ("sample/centre", "sample/whole"),
        ("sample/decoded-cache", "sample/whole"),
        ("sample/decoded-cache-unscaled", "sample/whole-unscaled"),
        ("sample/filling-cache", "sample/whole"),
        ("sample/decoded-cache-against-unscaled", "sample/decoded-cache-unscaled"),
        ("stage/read", "limit/read"),
        ("stage/decode", "limit/decode"),
        ("stage/resize", "limit/resize"),
        ("stage/rest", None),
        *((f"stage/{stage}-turbojpeg", None) for stage in TURBOJPEG_STAGES),
        ("limit/entropy", "decode/tiled"),
        ("sample/whole-against-limit", "sample/limit"),
    ):
        row = rows[name]
        assert row["min"] <= row["value"] <= row["max"]
        assert row["value"] > 0
        assert row["baseline"] == baseline
        assert (row["ratio"] is None) == (baseline is None)
    assert rows["decoded-cache/fill"]["unit"] == rows["decoded-cache/filled"]["unit"] == "%"
    assert 0 <= rows["decoded-cache/filled"]["value"] <= 100
    assert rows["decoded-cache/size"]["value"] > rows["dataset/size"]["value"] * 4
    assert rows["dataset/images"]["value"] == SAMPLES
    assert rows["dataset/blob"]["baseline"] == "dataset/jpeg"
    assert rows["dataset/blob"]["unit"] == "bytes/image"
    assert rows["dataset/blob"]["value"] == np.mean(_blob_sizes(dataset))
    assert rows["check/equal-to-pillow"]["value"] == SAMPLES
    assert 0 <= rows["crops/scaled"]["value"] <= 100
    assert report["measured"]["images"] == SAMPLES
    text = capsys.readouterr().out
    assert "training samples/s on one core" in text.splitlines()[0]
    assert "sample/whole" in text
    assert "× sample/full" in text
    assert "libjpeg-turbo" in text


def test_classes_have_rows_and_a_table(dataset: Path) -> None:
    report = decode.measure_decode(dataset, images=SAMPLES, rounds=2, core=choose_core(None))
    rows = {row.name: row for row in report.results}
    table = AllRowsReport.of(report).to_text().partition("µs an image by class")[2]
    assert "µs an image by class" not in report.to_text()
    with Dataset.open(dataset) as opened:
        kinds = opened.read_records(np.arange(SAMPLES))["subsampling"]
        halves = [half_of(opened.name_of(each) or "") for each in range(SAMPLES)]
    counts = {kind.name.lower(): np.count_nonzero(kinds == kind) for kind in Subsampling}
    counts |= {half: halves.count(half) for half in ("tune", "held-out")}
    assert counts["tune"] + counts["held-out"] == SAMPLES
    for name, count in counts.items():
        measured = count >= FEWEST
        assert (f"sample/whole/{name}" in rows) == (f"\n{name} " in table) == measured
        if not measured:
            continue
        assert rows[f"dataset/images/{name}"].value == count
        assert rows[f"dataset/blob/{name}"].baseline == f"dataset/jpeg/{name}"
        for what, way in (("decode", "tiled"), ("sample", "whole")):
            for ours in (f"{what}/{way}", f"{what}/tiled-turbojpeg"):
                assert rows[f"{ours}/{name}"].baseline == f"{what}/full/{name}"
            against = rows[f"{what}/{way}-against-turbojpeg/{name}"]
            assert against.baseline == f"{what}/tiled-turbojpeg/{name}"
            assert f" {against.ratio:.2f}" in table
    assert counts["s444"] >= FEWEST
    assert max(len(line) for line in table.splitlines()) <= 80


def test_half_of_a_name_does_not_depend_on_the_dataset() -> None:
    names = [f"n{number:08}/{number}.JPEG" for number in range(500)]
    assert half_of("n01440764/n01440764_10026.JPEG") == "held-out"
    assert 200 < sum(half_of(name) == "tune" for name in names) < 300


def test_quality_of_scaled_crops_is_their_psnr(dataset: Path, tmp_path: Path) -> None:
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
    shape = (SAMPLES, recipe.image_size, recipe.image_size, 3)
    by_pillow, expected = np.zeros(shape, np.int8), np.ones(shape, np.int8)
    with (
        Dataset.open(dataset) as opened,
        PreparedSamples(opened, recipe, np.arange(SAMPLES)) as samples,
    ):
        PillowSamples(samples).decode_full(0, SAMPLES)
        PillowSamples(samples).sample_full(0, SAMPLES, by_pillow)
        samples.sample_full_same_code(0, SAMPLES, expected)
    assert np.abs(by_pillow.astype(int) - expected).max() <= 1


def test_limits_resize_the_picture_that_they_decoded(tmp_path: Path) -> None:
    """Also where our decoder leaves the image to TurboJPEG."""
    kinds = ("4:2:0", "4:1:1", "4:4:0", "rgb")
    (tmp_path / "source" / "class").mkdir(parents=True)
    for number, kind in enumerate(kinds):
        jpeg = hard_jpeg(number, kind, 70, 60, 80)
        (tmp_path / "source" / "class" / f"{number}.jpg").write_bytes(jpeg)
    pack(tmp_path / "source", tmp_path / "dataset")
    recipe = Recipe.for_split("train", batch_size=1, image_size=32)
    expected = np.empty((1, 32, 32, 3), np.int8)
    with (
        Dataset.open(tmp_path / "dataset") as opened,
        PreparedSamples(opened, recipe, np.arange(len(kinds))) as samples,
    ):
        limits = StageLimits(samples, recipe.image_size)
        for row in range(len(kinds)):
            limits.measure(row, row + 1)
            samples.sample_tiled_turbojpeg(row, row + 1, expected)
            assert np.array_equal(limits._out, expected[0])


def test_ordinary_jpegs_have_no_restart_markers_and_the_true_size(dataset: Path) -> None:
    recipe = Recipe.for_split("train", batch_size=8)
    with (
        Dataset.open(dataset) as opened,
        PreparedSamples(opened, recipe, np.arange(SAMPLES)) as samples,
    ):
        for jpeg, width, height in zip(
            samples.jpegs, samples.widths.tolist(), samples.heights.tolist(), strict=True
        ):
            assert b"\xff\xdd" not in jpeg[:700], "a restart interval is defined"
            sof = jpeg.index(b"\xff\xc0")
            assert int.from_bytes(jpeg[sof + 7 : sof + 9]) == width
            assert int.from_bytes(jpeg[sof + 5 : sof + 7]) == height


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


def test_invalid_numbers_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["decode", "--rounds", "0"])
    assert ended.value.code == 2
    assert "0 is not 1 or more" in capsys.readouterr().err


def test_the_product_is_what_is_measured(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    fill = decode.SampleReader.fill

    def counted(self: decode.SampleReader, sample_ids: np.ndarray, **named: object) -> None:
        calls.append(len(sample_ids))
        fill(self, sample_ids, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(decode.SampleReader, "fill", counted)
    report = decode.measure_decode(dataset, images=7, rounds=3, core=choose_core(None))
    # The cache is filled, at full size and in a few epochs at other scales; then the readers are
    # compared (the first one with Pillow's pixels and with TurboJPEG's), warmed up and measured.
    # The last is the centre crops' reference.
    readers = 7 + len(VERSIONS[:-1])
    first = 1 + readers * (1 + 1 + 3) + 1
    filling = 7 * (1 + cached._SCALED_EPOCHS)
    assert calls[: filling + first] == [1] * filling + [7] * first
    assert {result.name for result in report.results} >= {"sample/whole"}


@pytest.mark.parametrize("decoder", DECODERS)
def test_samples_are_decoded_as_asked(
    dataset: Path,
    tmp_path: Path,
    decoder: Decoder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every reader that no row names otherwise has the decoder, and the names of rows stay."""
    made: list[str] = []
    init = decode.SampleReader.__init__

    def recorded(self: decode.SampleReader, *arguments: object, **named: object) -> None:
        if "vectors" not in named:
            made.append(str(named.get("decoder", "unnamed")))
        init(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(decode.SampleReader, "__init__", recorded)
    monkeypatch.setattr(decode, "measure_scaling", lambda *_: [])  # it times nothing
    out = tmp_path / "decode.json"
    options = ["--images", "11", "--rounds", "1", "--json", str(out), "--decoder", decoder]
    assert main(["decode", str(dataset), *options]) == 0
    document = json.loads(out.read_text())
    references = 2  # sample/whole-turbojpeg, and that of sample/centre
    assert "unnamed" not in made
    assert made.count("turbojpeg") == (len(made) if decoder == "turbojpeg" else references)
    assert document["machine"]["decoder"] == describe_decoder(decoder)
    assert f"decoder {describe_decoder(decoder)};" in " ".join(capsys.readouterr().out.split())
    names = {row["name"] for row in document["results"]}
    assert names >= {f"sample/whole-{version}" for version in VERSIONS}
    assert ("stage/join" in names) == (decoder == "turbojpeg")


def test_likeness_compares_real_images_with_synthetic_ones(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "source", images=4, classes=2, seed=5, jobs=1)
    out = tmp_path / "likeness.json"
    assert main(["likeness", str(tmp_path / "source"), "--rounds", "1", "--json", str(out)]) == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["results"]}
    assert rows["full/synthetic"]["baseline"] == "full/real"
    assert rows["tiled/synthetic"]["ratio"] > 0
    assert rows["source/real"]["value"] > 1000
