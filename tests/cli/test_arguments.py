"""The options of commands that pack, serve and read datasets mean what they say."""

import dataclasses
import os
from pathlib import Path

import pytest

from feeder.cli import serve
from feeder.cli.main import build_parser
from feeder.dataset.manifest import load_manifest
from feeder.pack.options import PackOptions
from feeder.process.child import SINGLE_THREADS
from feeder.source.source import SourceSpec
from tests.support.sources import call_feeder, error_line
from tests.support.synthetic_sets import pack_synthetic


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("packed"), images=11)


def test_verify_says_whole_or_damaged(dataset: Path, tmp_path: Path) -> None:
    result = call_feeder("verify", dataset, "--jobs", "1")
    content = load_manifest(dataset).content
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{dataset} is whole: 11 samples in ")
    assert result.stdout.endswith(f", content fingerprint {content}\n")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in dataset.iterdir():
        if path.is_file():
            (damaged / path.name).write_bytes(path.read_bytes())
    shard = next(damaged.glob("*.fds"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    result = call_feeder("verify", damaged, "--jobs", "1")
    assert result.returncode == 3
    assert result.stdout.startswith("damaged: ")
    assert f"\n{damaged} is damaged: " in result.stdout


def test_names_are_in_the_given_order(dataset: Path) -> None:
    every = call_feeder("names", dataset, *map(str, range(11))).stdout.splitlines()
    assert len({*every}) == 11
    result = call_feeder("names", dataset, "7", "0", "3")
    assert result.stdout.splitlines() == [every[7], every[0], every[3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{dataset}", "11"], "{dataset} has no sample 11, it has 0 .. 10"),
        (["{dataset}", "0", "--dataset", "x"], "--dataset goes with an ENDPOINT"),
        (["ipc:///nowhere", "0"], "an ENDPOINT needs the dataset's name"),
    ],
)
def test_wrong_arguments_of_names_are_one_line(
    dataset: Path, arguments: list[str], message: str
) -> None:
    result = call_feeder("names", *(each.format(dataset=dataset) for each in arguments))
    assert result.returncode == 2
    assert message.format(dataset=dataset) in error_line(result)


def test_numeric_libraries_get_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("feeder.cli.datasets.run_survey", lambda _: seen.update(os.environ) or 0)
    assert call_feeder("survey", "x").returncode == 0
    assert {name: seen.get(name) for name in SINGLE_THREADS} == SINGLE_THREADS


def test_every_option_of_pack_reaches_packing_or_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {field.name for field in dataclasses.fields(PackOptions)}
    parsed = vars(build_parser().parse_args(["pack", "a", "b"]))
    assert fields - {*parsed} == {"reading"}
    others = {"command", "run", "source", "destination", "lanes", "ray", "val_fraction", "val_list"}
    assert {*parsed} - others <= fields | {*SourceSpec.__struct_fields__}
    packed: list[PackOptions] = []
    monkeypatch.setattr("feeder.pack.run.pack_dataset", lambda _1, _2, options, *_, **__: options)
    monkeypatch.setattr("feeder.cli.pack.format_summary", lambda _, o: packed.append(o) or [])
    base = ("pack", "a", tmp_path)
    words = "--image i --class-names c --split s --seed 3 --tile-width 64 --strict --jobs 1"
    for options in (("--jobs", "1"), words.split()):
        assert call_feeder(*base, *options).returncode == 0
    plain, chosen = packed
    assert plain == PackOptions(reading=plain.reading), "the defaults are the same"
    assert (chosen.seed, chosen.tile_width_px, chosen.strict, chosen.split) == (3, 64, True, None)
    names = ("image", "class_names_file", "split", "label")
    assert [chosen.reading[name] for name in names] == ["i", "c", "s", ""]


def test_every_option_of_serve_is_a_configuration_key() -> None:
    words = ["serve", "--data", "d=/d", "--bind", "ipc:///x", "--log-level", "debug"]
    words += ["--peers", "file:///f", "--peers", "dns://n:5"]
    for name, metavar, _ in serve._OPTIONS:
        words += [f"--{name}", f"{name}!"] if metavar else []
    overrides = serve._overrides(build_parser().parse_args(words))
    for key, value in {
        "data": {"d": "/d"},
        "serve.bind": ("ipc:///x",),
        "serve.peers": ("file:///f", "dns://n:5"),
        "log_level": "debug",
        "log_format": None,
        "cache.dir": "cache-dir!",
        "cache.decoded_bytes": "decoded-bytes!",
        "cache.disk_path": "disk-path!",
        "cache.disk_bytes": "disk-bytes!",
    }.items():
        assert overrides.pop(key) == value
    assert overrides == {key: f"{key[6:].replace('_', '-')}!" for key in overrides}
    assert {key[:6] for key in overrides} == {"serve."}
    assert len(overrides) == 22
