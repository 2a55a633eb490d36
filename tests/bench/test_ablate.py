"""``feeder-bench ablate``: the setups of the figure, and a short real run."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stream.ablate import (
    OPTIMISATIONS,
    AblateReport,
    Setup,
    everything,
    figure_rows,
    plan_figure,
)
from bench.stream.streams import doublings
from tests.bench.rows import SAMPLES, draw, run_bench


def test_optimisations_are_added_and_removed_one_by_one() -> None:
    figure, every = plan_figure(3), everything(3)
    added = [setup for name, setup in figure.items() if name.startswith("added/")]
    assert added[0] == Setup()
    assert added[-1] == every == figure["removed/nothing"] == figure["workers/3"]
    steps = [*itertools.pairwise(added)]
    steps += [(every, figure[f"removed/{name}"]) for name in OPTIMISATIONS]
    for (before, after), key in zip(steps, 2 * [*OPTIMISATIONS.values()], strict=True):
        changed = [one != two for one, two in zip(before, after, strict=True)]
        assert changed == [field == key for field in Setup._fields]


@given(st.integers(1, 2000))
def test_numbers_of_workers_double_up_to_the_most(most: int) -> None:
    counts = doublings(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert all(later <= 2 * count for count, later in itertools.pairwise(counts))


@pytest.mark.extensive("a whole run of the bench")
def test_names_and_baselines_of_rows(dataset: Path, tmp_path: Path) -> None:
    affinity = os.sched_getaffinity(0)
    report = run_bench(tmp_path, "ablate", dataset, "--rounds", 1, "--batches", 1)
    assert os.sched_getaffinity(0) == affinity
    assert report["machine"]["cores_used"]["client"] == max(affinity)
    assert report["measured"] == {"rounds": 1, "images": SAMPLES, "images a round": SAMPLES}
    rows = {row["name"]: row["baseline"] for row in report["results"]}
    for before, name in itertools.pairwise(["nothing", *OPTIMISATIONS]):
        assert rows[f"added/{name}"] == f"added/{before}"
        assert rows[f"removed/{name}"] == "removed/nothing"
    assert rows["all-of-them/against-nothing"] == "added/nothing"
    assert rows["added/nothing"] is rows["removed/nothing"] is rows["workers/1"] is None
    assert {row["unit"] for row in report["results"]} == {"images/s"}


def _report(rounds: int = 5, workers: int = 4, **ratios: float) -> AblateReport:
    """Make a report in which all rows have 1,000 images/s, but removed/X has ratio × 1,000."""
    noise = [0.99, 1.0, 1.0, 1.0, 1.01][:rounds]
    figure = plan_figure(workers)
    every, nothing = figure["removed/nothing"], figure["added/nothing"]
    rates = {setup: [1000.0 * each for each in noise] for setup in figure.values()}
    rates[every] = [1000.0] * len(noise)
    rates[nothing] = [100.0] * len(noise)
    for name, ratio in ratios.items():
        removed = figure[f"removed/{name.replace('_', '-')}"]
        rates[removed] = [1000 * ratio * each for each in noise]
    values = {name: rates[setup] for name, setup in figure.items()}
    return AblateReport(
        bench="ablate",
        machine={"cpu": "Test CPU", "cores": 4, "cores_used": {"daemon": "0-3", "client": 3}},
        results=figure_rows(values),
        measured={"rounds": rounds, "images": 201, "images a round": 512},
    )


def test_conclusion_is_first_and_separates_noise_from_gains() -> None:
    text = _report(decoded_cache=0.5, int8=0.6, dct_scaling=1.2).to_text()
    assert " ".join(text.split()).startswith(
        "All optimisations together: 10.00 (10.00–10.00) times as fast as with none. "
        "Slower without one: decoded cache × 0.50, int8 × 0.60. "
        "Faster without one: DCT scaling × 1.20. "
        "No difference beyond the noise: partial decode, prefetch window, "
    )
    rows = {line.split()[0]: line for line in text.splitlines() if line.count("/") > 1}
    assert rows["removed/int8"].endswith("× removed/nothing")
    assert "0.60 (0.59–0.61)" in rows["removed/int8"]
    assert rows["removed/ipc"].endswith("within noise")


def test_an_ablation_is_drawn(tmp_path: Path) -> None:
    report = _report(int8=0.6)
    assert "linear scaling" in draw(report, tmp_path)
    from bench.plots.ablate import plot_rows
    from bench.plots.draw import write_plot

    (tmp_path / "link.png").symlink_to("ablate.png")
    write_plot(report, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink(), "as docs/errors.md says of --plot"
    assert (tmp_path / "ablate.png").read_bytes().startswith(b"\x89PNG")
    bars = {row["name"]: row for row in plot_rows(report.results, "removed")}
    assert (bars["int8"]["hollow"], bars["int8"]["text"]) == (False, "× 0.60")
    assert (bars["ipc"]["hollow"], bars["ipc"]["text"]) == (True, "× 1.00 within noise")
