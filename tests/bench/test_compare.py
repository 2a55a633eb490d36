"""``feeder-bench compare`` on made-up results with known verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.compare import verdict_on
from bench.report import Result


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
