"""``feeder-bench ablate``: the setups of the figure, and a short real run."""

import itertools
import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.report import RATE, Report, Result, summarise
from bench.stream.ablate import (
    NOTHING,
    OPTIMISATIONS,
    Setup,
    everything,
    plan_figure,
    worker_counts,
)
from tests.support.synthetic_sets import pack_synthetic


def _settings(setup: Setup) -> tuple[Any, ...]:
    *session, daemon, transport = astuple(setup)
    return (*session, *daemon, transport)


def test_each_optimisation_changes_one_setting_and_all_change_all() -> None:
    every = everything(3)
    for take in OPTIMISATIONS.values():
        changed = [
            before != after
            for before, after in zip(
                _settings(NOTHING), _settings(take(NOTHING, every)), strict=True
            )
        ]
        assert sum(changed) == 1
    assert all(a != b for a, b in zip(_settings(NOTHING), _settings(every), strict=True))


def test_optimisations_added_one_by_one_become_everything() -> None:
    figure = plan_figure(3)
    added = [setup for name, setup in figure.items() if name.startswith("added/")]
    assert added[0] == NOTHING
    assert added[-1] == everything(3) == figure["removed/nothing"] == figure["workers/3"]
    assert len(set(added)) == len(OPTIMISATIONS) + 1
    for name, take in OPTIMISATIONS.items():
        assert take(figure[f"removed/{name}"], everything(3)) == everything(3)


@given(st.integers(1, 2000))
def test_numbers_of_workers_double_up_to_the_most(most: int) -> None:
    counts = worker_counts(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert all(later <= 2 * count for count, later in itertools.pairwise(counts))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("ablate"), images=17)


@pytest.mark.extensive
def test_names_and_baselines_of_rows(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "ablate.json"
    affinity = os.sched_getaffinity(0)
    assert (
        main(["ablate", str(dataset), "--rounds", "1", "--batches", "1", "--json", str(out)]) == 0
    )
    assert os.sched_getaffinity(0) == affinity
    report = json.loads(out.read_text())
    assert report["machine"]["cores_used"]["client"] == max(affinity)
    rows = {row["name"]: row for row in report["results"]}
    names = ["nothing", *OPTIMISATIONS]
    for before, name in itertools.pairwise(names):
        assert rows[f"added/{name}"]["baseline"] == f"added/{before}"
        assert rows[f"removed/{name}"]["baseline"] == "removed/nothing"
        assert rows[f"added/{name}"]["ratio"] > 0
    assert rows["added/nothing"]["baseline"] is None
    assert rows["workers/1"]["baseline"] is None
    assert {row["unit"] for row in rows.values()} == {"images/s"}


def test_an_ablation_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the plots extra is not installed")
    from bench.plots.draw import write_plot

    rows: list[Result] = [
        summarise(name, RATE, [100.0 + number, 120.0 + number])
        for number, name in enumerate(plan_figure(4))
    ]
    report = Report(bench="ablate", machine={"cpu": "Test CPU", "cores": 4}, results=rows)
    write_plot(report, tmp_path / "ablate.png")
    assert (tmp_path / "ablate.png").read_bytes().startswith(b"\x89PNG")
