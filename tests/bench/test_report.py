"""What all benches share: rows, rounds, pinning, noise, tables, and comparing two runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.compare import verdict_on
from bench.machine import choose_core, choose_cores, pinned_to
from bench.report import RATE, Report, Result, compare, median_interval, single
from bench.rounds import measure, run_rounds
from feeder.errors import ConfigError

FIELDS = {"name", "value", "unit", "min", "max", "baseline", "ratio"}
FIELDS |= {"ratio_low", "ratio_high"}


def _report() -> Report:
    values = {"decode/full": [100.0, 50.0, 90.0], "decode/tiled": [200.0, 150.0, 90.0]}
    machine = {"cpu": "Test CPU", "cores_used": {"all": 0}, "libraries": {"numpy": "2"}}
    results = [*compare(values, RATE), single("n", "images", 7)]
    return Report(bench="decode", machine=machine, results=results)


def test_value_is_the_median_and_ratio_the_median_ratio_of_the_rounds() -> None:
    base, tiled, _ = _report().results
    assert (base.value, base.min, base.max) == (90, 50, 100)
    assert (base.baseline, base.ratio) == (None, None)
    assert tiled.value == 150
    assert tiled.ratio == 2  # of 2, 3 and 1; the ratio of the medians would be 1.67
    assert tiled.baseline == "decode/full"


def test_json_has_the_fields_that_every_bench_has(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    _report().write_json(path)
    found = json.loads(path.read_text())
    assert set(found) == {"bench", "machine", "measured", "results"}
    assert found["machine"]["libraries"] == {"numpy": "2"}
    assert all(set(result) == FIELDS for result in found["results"])
    assert found["results"][0]["ratio"] is None


@pytest.mark.parametrize(
    ("rounds", "outside"), [(5, 0), (6, 0), (7, 0), (8, 1), (9, 1), (11, 2), (12, 2), (15, 3)]
)
def test_noise_is_the_narrowest_interval_with_90_percent_confidence(
    rounds: int, outside: int
) -> None:
    values = [float(number) for number in range(rounds)]
    assert median_interval(values[::-1]) == (outside, rounds - 1 - outside)


@pytest.mark.parametrize(
    ("ratios", "noise"),
    [
        ([0.9, 1.1, 1.2, 1.3, 1.4], True),
        ([1.01, 1.1, 1.2, 1.3, 1.4], False),
        ([0.5, 0.6, 0.7, 0.8, 0.9], False),
        ([1.0, 1.0, 1.0, 1.0, 1.0], True),
        ([2.0, 2.0], True),
    ],
)
def test_a_difference_is_noise_if_the_interval_holds_1(ratios: list[float], noise: bool) -> None:
    base, row = compare({"base": [1.0] * len(ratios), "row": ratios}, RATE)
    assert row.is_within_noise == noise
    assert not base.is_within_noise


def test_table_shows_machine_time_per_image_and_baselines() -> None:
    text = _report().to_text()
    assert "cpu: Test CPU" in text
    assert "cores used: all 0" in text
    line = next(line for line in text.splitlines() if line.startswith("decode/tiled"))
    assert " ".join(line.split()) == "decode/tiled 150 images/s 6,667 µs 90 200 2.00 × decode/full"


def test_rounds_give_each_contender_every_item_and_every_turn() -> None:
    calls: list[tuple[str, int, int]] = []
    contenders = {
        name: lambda first, end, name=name: calls.append((name, first, end)) for name in "abc"
    }
    taken = measure(contenders, items=7, piece=3, rounds=2)
    assert [*taken] == ["a", "b", "c"]
    assert all(len(values) == 2 and min(values) >= 0 for values in taken.values())
    warm_up, calls = calls[:3], calls[3:]
    assert warm_up == [("a", 0, 3), ("b", 0, 3), ("c", 0, 3)]
    for name in "abc":
        own = [call[1:] for call in calls if call[0] == name]
        assert sorted(own[:3]) == sorted(own[3:]) == [(0, 3), (3, 6), (6, 7)]
    steps = [calls[at : at + 3] for at in range(0, len(calls), 3)]
    for step in steps:
        assert {name for name, _, _ in step} == set("abc")
        assert len({first for _, first, _ in step}) == 3, "two had the same piece in one step"
    assert len({step[0][0] for step in steps}) > 1, "the same one always begins"


def test_turns_of_a_contender_are_spread_over_the_round() -> None:
    turns: list[str] = []
    names = {name: lambda first, end, name=name: turns.append(name) for name in "abcdefghijkl"}
    list(run_rounds(names, items=4, piece=1, rounds=2))
    turns, again = turns[: len(turns) // 2], turns[len(turns) // 2 :]
    assert turns != again, "each round has another order"
    for name in names:
        places = [place for place, other in enumerate(turns) if other == name]
        assert max(places) - min(places) >= len(turns) // 2


def test_pinning_lasts_as_long_as_its_context() -> None:
    before = os.sched_getaffinity(0)
    core = choose_core(None)
    with pinned_to(core):
        assert os.sched_getaffinity(0) == {core}
        assert choose_cores(core) == (core, core)
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ConfigError, match="--core 99999"):
        choose_core(99999)


def _row(name: str, value: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    usual = {"unit": "images/s", "baseline": None, "ratio": None}
    return {"name": name, "value": value, "min": low, "max": high} | usual | more


MACHINE = {
    "cpu": "Test CPU",
    "load_before": 0.1,
    "cores_used": {"all contenders": 0},
    "libraries": {"numpy": "2.1", "libjpeg-turbo": "2.1.5"},
}
ROWS = [
    _row("full", 500.0, 480.0, 520.0),
    _row("tiled", 900.0, 880.0, 940.0, baseline="full", ratio=1.8),
    _row("low", 100.0, 90.0, 110.0),
    _row("read", 90.0, 90.0, 90.0),
]


def _write(path: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    document = {"bench": "decode", "machine": MACHINE, "results": rows} | more
    path.write_text(json.dumps(document))
    return path


def test_the_whole_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _write(tmp_path / "a.json", ROWS)
    machine = MACHINE | {
        "cpu": "Other CPU",
        "load_before": 3.5,
        "cores_used": {"all contenders": 1},
        "libraries": {"numpy": "2.2", "libjpeg-turbo": "2.1.5", "zstd": "1"},
    }
    rows = [
        _row("full", 510.0, 490.0, 530.0),
        _row("tiled", 1080.0, 1000.0, 1100.0, baseline="full", ratio=2.1),
        _row("low", 50.0, 40.0, 60.0),
        _row("new", 7.0, 7.0, 7.0),
    ]
    more = {"machine": machine, "series": {"at_s": [1, 2]}}  # an additional key is ignored
    after = _write(tmp_path / "b.json", rows, **more)
    assert main(["compare", str(before), str(after)]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
feeder-bench decode: A {before}, B {after}
  differences between the machines, which may explain the rest:
    cpu: Test CPU → Other CPU
    cores used all contenders: 0 → 1
    libraries numpy: 2.1 → 2.2
    libraries zstd: none → 1
  load before: 0.1 → 3.5

                    A                     B             B/A                ratio to baseline
full   500 [480, 520]        510 [490, 530]  images/s  1.02  within noise
tiled  900 [880, 940]  1,080 [1,000, 1,100]  images/s  1.20  higher        1.80 → 2.10 × full
low     100 [90, 110]           50 [40, 60]  images/s  0.50  lower

only in A:
  read  90 images/s

only in B:
  new  7 images/s
"""
    )


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 3, "cannot be read"),
        ("{", 3, "is not a bench's JSON"),
        ('{"bench": "decode", "machine": {}, "results": [{"name": 1}]}', 3, "results[0]"),
        ('{"bench": "stream", "machine": {}, "results": []}', 2, "feeder-bench stream"),
    ],
)
def test_files_that_cannot_be_compared_give_one_error_line(
    tmp_path: Path,
    content: str | None,
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, after = _write(tmp_path / "a.json", ROWS), tmp_path / "b.json"
    if content is not None:
        after.write_text(content, encoding="latin-1")
    assert main(["compare", str(before), str(after)]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("feeder-bench: error: ")
    assert str(after) in err
    assert message in err


rounds = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=5)


@given(rounds, rounds)
def test_swapping_the_files_reverses_the_verdict(one: list[float], other: list[float]) -> None:
    before, after = (
        Result(name="x", value=sorted(row)[len(row) // 2], unit="s", min=min(row), max=max(row))
        for row in (one, other)
    )
    there, back = verdict_on(before, after), verdict_on(after, before)
    assert back == {"higher": "lower", "lower": "higher"}.get(there, there)
    if there == "higher":
        assert max(one) < min(other)
