"""The rows of the small benches, each on a tiny set, and what is special in each."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.data.synthetic import write_synthetic
from bench.micro import kernels, loss, training_step
from bench.stream import loaders
from feeder.jpeg import resize
from tests.bench.rows import RATE, Expected, alone, check_rows, group, run_bench
from tests.support.sources import make_source, run_inline
from tests.support.synthetic_sets import pack_synthetic
from trainer_client import _host_normalise


@pytest.fixture
def torch_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_loaders(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_threads: None
) -> None:
    monkeypatch.setattr(loaders, "STEP_SIDE_PX", 32)
    document = run_bench(tmp_path, "loaders", dataset, "--rounds", 1, "--steps", 1)
    rows = check_rows(
        document,
        group("ms", "training/in-memory", "training/loader", "training/take")
        | alone(training__wait="% of the time")
        | group(RATE, "loaders/torch", "loaders/numpy", "loaders/numpy-int8"),
    )
    assert rows["training/take"]["value"] < rows["training/loader"]["value"]
    assert 0 <= rows["training/wait"]["value"] <= 100


def test_resume(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run_bench(tmp_path, "resume", dataset, "--rounds", 1)
    names = ("first-batch-fresh", "first-batch", "first-batch-other-ranks")
    rows = check_rows(
        document,
        group("s", *(f"resume/{name}" for name in names))
        | alone(resume__state_us="µs", resume__state_bytes="bytes"),
    )
    assert rows["resume/state-us"]["min"] < 100, "the state must stay small"
    assert rows["resume/state-bytes"]["value"] < 1000
    assert "resume/state-us" in capsys.readouterr().out


@pytest.mark.parametrize("has_torch", [True, False])
def test_normalise(has_torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_torch:
        monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    document = run_bench(tmp_path, "normalise", "--images", 2, "--rounds", 1)
    expected: Expected = {}
    for value_type, channels in itertools.product(("float32", "float16", "bfloat16"), (3, 4)):
        ways = ["copy", *_host_normalise.VERSIONS, *(["tensor"] if has_torch else [])]
        kind = f"{value_type}-{channels}"
        expected |= group("ms", *(f"normalise/{way}-{kind}" for way in ways))
    check_rows(document, expected)


def test_resize(tmp_path: Path) -> None:
    document = run_bench(tmp_path, "resize", "--crops", 9, "--rounds", 1)
    names = ("pillow", *resize.VERSIONS)
    check_rows(document, group(RATE, *(f"resize/{name}" for name in names)))


def test_order(tmp_path: Path) -> None:
    document = run_bench(tmp_path, "order", "--epochs", 2, "--rounds", 1)
    units = {"mixing": "% of global", "working-set": "GiB", "first-batch": "MB"}
    shapes = ("64-lanes", "128-lanes", "256-lanes", "64-lanes/whole", "512-lanes/whole")
    expected: Expected = {
        f"{name}/{shape}": (unit, None) for name, unit in units.items() for shape in shapes
    }
    for shape, hosts in itertools.product(shapes[:3], (4, 16, 24, 64)):
        expected[f"evenness/{shape}/{hosts}-hosts"] = "% of even", None
    plans = ("imagenet", "21k", "21k-weighted", "21k-mix")
    expected |= {f"plan/{name}": ("µs", None) for name in plans}
    rows = check_rows(document, expected)
    assert rows["mixing/64-lanes"]["value"] > 97 > rows["mixing/512-lanes/whole"]["value"]
    assert rows["working-set/64-lanes"]["value"] == pytest.approx(16, abs=0.01)
    assert rows["first-batch/64-lanes"]["value"] < 1000
    assert rows["evenness/64-lanes/64-hosts"]["value"] == 100


def test_likeness(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "source", images=4, classes=2, seed=5, jobs=1)
    document = run_bench(tmp_path, "likeness", tmp_path / "source", "--rounds", 1)
    units = {"source": "bytes/image", "jpeg": "bytes/image", "jpeg-spread": "bytes/image"}
    units |= {"width": "px", "height": "px", "area": "pixels/image", "density": "bytes/pixel"}
    units |= {"444": "%", "420": "%", "grey": "%"}
    kinds = ("real", "synthetic")
    rows = check_rows(
        document,
        {f"{name}/{kind}": (unit, None) for name, unit in units.items() for kind in kinds}
        | group(RATE, "full/real", "full/synthetic")
        | group(RATE, "tiled/real", "tiled/synthetic"),
    )
    assert rows["source/real"]["value"] > 1000


def test_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = 11
    settings = ({"max_side": 40}, {"quality": 30, "subsampling": "444"}, {"max_side": 90})
    resized, poor, same = names = ("max-side 40", "quality 30 subsampling 444", "max-side 90")
    monkeypatch.setattr(loss, "SETTINGS", settings)
    run_inline(monkeypatch, "pack.run")
    source = make_source(tmp_path / "source", images, side=40)
    document = run_bench(tmp_path, "loss", source, "--rounds", 1)
    expected: Expected = {}
    for what, unit in (("size", "MB"), ("train", RATE)):
        expected |= group(unit, *(f"{name}/{what}" for name in ("lossless", *names)))
    expected |= {f"{name}/changed": ("%", None) for name in ("lossless", *names)}
    for what in ("stored", "crop"):
        expected |= {f"{name}/{what}": ("dB", None) for name in (resized, poor)}
    rows = check_rows(document, expected)
    assert rows[f"{same}/size"]["ratio"] == 1
    assert rows["lossless/changed"]["value"] == rows[f"{same}/changed"]["value"] == 0
    larger = sum(40 + number % 7 > 40 for number in range(images))
    assert rows[f"{resized}/changed"]["value"] == pytest.approx(100 * larger / images)
    assert rows[f"{poor}/changed"]["value"] == 100
    for what in ("stored", "crop"):
        assert 10 < rows[f"{poor}/{what}"]["min"] <= rows[f"{poor}/{what}"]["value"] < 40
    assert rows[f"{poor}/stored"]["value"] < rows[f"{resized}/stored"]["value"]
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in names)


@pytest.mark.extensive("seconds of training in eight processes; recompute's memory has its own")
def test_training_step(tmp_path: Path) -> None:
    sizes = ("--model", "small", "--batch", 16, "--image-size", 128)
    document = run_bench(tmp_path, "training-step", *sizes, "--rounds", 1)
    assert document["measured"] == {"model": "small", "batch": 16, "image_px": 128, "rounds": 1}
    expected = alone(memory__resident="MiB")
    for kind, unit in (("step", RATE), ("memory", "MiB"), ("process", "MiB")):
        expected |= group(unit, *(f"{kind}/{name}" for name in training_step.MICRO_BATCHES))
    rows = check_rows(document, expected)
    assert rows["memory/resident"]["value"] > 50
    for name in ("accumulate-2", "accumulate-4"):
        assert rows[f"memory/{name}"]["ratio"] < 0.8


@pytest.mark.extensive("ten seconds of scrapes; scrapers have tests of their own")
def test_eyes(tmp_path: Path) -> None:
    packed = pack_synthetic(tmp_path, images=150)
    document = run_bench(tmp_path, "eyes", packed, "--rounds", 1, "--batches", 2, "--idle", 0.5)
    rows = check_rows(
        document,
        group(RATE, "eyes/alone", "eyes/watched", "eyes/idle-connections")
        | alone(eyes__scrape_p50="ms", eyes__scrape_p99="ms", eyes__idle_cpu="% of a core"),
    )
    assert 0 < rows["eyes/scrape-p50"]["value"] <= rows["eyes/scrape-p99"]["value"]


def test_links(tmp_path: Path) -> None:
    document = run_bench(tmp_path, "links", "--feeders", 5, "--seconds", 0.3)
    load = "% of a core"
    rows = check_rows(
        document,
        alone(links__waiting=load, links__taking=load, links__short_list=load)
        | alone(links__descriptors="open", links__owners="% of batches"),
    )
    assert rows["links/descriptors"]["value"] > 5
    assert rows["links/owners"]["value"] > 50
