"""``feeder-bench training-step`` on a small model: its rows, and what it refuses."""

import argparse
import json
from pathlib import Path

import pytest

from bench.machine import choose_core
from bench.micro.training_step import (
    MICRO_BATCHES,
    StepOptions,
    measure_training_step,
    run,
)
from feeder.errors import ConfigError


def make_options(**changes: object) -> StepOptions:
    usual = {"model": "small", "batch": 8, "image_px": 64, "rounds": 1, "core": choose_core(None)}
    return StepOptions(**{**usual, **changes})


@pytest.mark.extensive("a whole run of the bench")
def test_rows_have_rates_and_memory_against_the_plain_step(tmp_path: Path) -> None:
    arguments = argparse.Namespace(model="small", batch=16, image_size=128, rounds=2, core=None)
    report = run(arguments)
    report.write_json(tmp_path / "step.json")
    content = json.loads((tmp_path / "step.json").read_text("utf-8"))
    assert content["bench"] == "training-step"
    assert content["measured"] == {"model": "small", "batch": 16, "image_px": 128, "rounds": 2}
    rows = {row["name"]: row for row in content["results"]}
    resident = rows.pop("memory/resident")
    assert (resident["unit"], resident["baseline"]) == ("MiB", None)
    assert resident["value"] > 50
    for kind, unit in (("step", "images/s"), ("memory", "MiB"), ("process", "MiB")):
        for variant in MICRO_BATCHES:
            row = rows.pop(f"{kind}/{variant}")
            assert row["unit"] == unit
            assert row["value"] > 0
            baseline = None if variant == "plain" else f"{kind}/plain"
            assert row["baseline"] == baseline
            if kind == "memory" and variant.startswith("accumulate"):
                assert row["ratio"] < 0.8
    assert rows == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet5"}, "no model 'resnet5': --model is one of "),
        ({"batch": 6}, "--batch 6 has no 4 equal micro-batches: use a multiple of 4"),
    ],
)
def test_options_without_a_meaning_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        measure_training_step(make_options(**changes))
    assert str(caught.value).startswith(message)
