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
    _row("decode/full", 500.0, 480.0, 520.0),
    _row("decode/tiled", 900.0, 880.0, 940.0, baseline="decode/full", ratio=1.8),
    _row("stage/read", 100.0, 90.0, 110.0),
]


def _write(path: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    document = {"bench": "decode", "machine": MACHINE, "results": rows} | more
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return _write(tmp_path / "a.json", ROWS)


def _line(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(name))


def test_rows_are_compared_by_their_spreads(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = [
        _row("decode/full", 510.0, 490.0, 530.0),
        _row("decode/tiled", 1080.0, 1000.0, 1100.0, baseline="decode/full", ratio=2.1),
        _row("stage/read", 50.0, 40.0, 60.0),
    ]
    assert main(["compare", str(before), str(_write(tmp_path / "b.json", after))]) == 0
    text = capsys.readouterr().out
    assert "same machine, cores and libraries" in text
    assert "load before: 0.1 → 0.1" in text
    assert "1.02  within noise" in _line(text, "decode/full")
    tiled = _line(text, "decode/tiled")
    assert "900 [880, 940]" in tiled
    assert "1,080 [1,000, 1,100]" in tiled
    assert "1.20  higher" in tiled
    assert tiled.endswith("1.80 → 2.10 × decode/full")
    assert "0.50  lower" in _line(text, "stage/read")
    assert "only in" not in text


def test_machine_differences_come_first(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = MACHINE | {
        "cpu": "Other CPU",
        "load_before": 3.5,
        "cores_used": {"all contenders": 1},
        "libraries": {"numpy": "2.2", "libjpeg-turbo": "2.1.5", "zstd": "1"},
    }
    after = _write(tmp_path / "b.json", ROWS, machine=machine)
    assert main(["compare", str(before), str(after)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:7] == [
        "differences between the machines, which may explain the rest:",
        "cpu: Test CPU → Other CPU",
        "cores used all contenders: 0 → 1",
        "libraries numpy: 2.1 → 2.2",
        "libraries zstd: none → 1",
        "load before: 0.1 → 3.5",
    ]
    assert sum("same" in line.split("  ") for line in lines) == len(ROWS)


def test_rows_of_one_file_are_listed_separately(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = _write(tmp_path / "b.json", [ROWS[0], _row("decode/new", 7.0, 7.0, 7.0)])
    assert main(["compare", str(before), str(after)]) == 0
    text = capsys.readouterr().out
    in_before, in_after = text[text.index("only in A:") :].split("only in B:")
    assert "decode/tiled  900 [880, 940] images/s" in in_before
    assert "stage/read" in in_before
    assert in_after.strip() == "decode/new  7 images/s"


def test_additional_keys_are_ignored(before: Path, tmp_path: Path) -> None:
    after = _write(tmp_path / "b.json", ROWS, series={"at_s": [1, 2]})
    assert main(["compare", str(before), str(after)]) == 0


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 3, "cannot be read"),
        ("{", 3, "is not a bench's JSON"),
        ("\xff", 3, "is not a bench's JSON"),
        ("[1]", 3, "is not a bench's JSON"),
        ('{"bench": "decode", "machine": {}}', 3, "results"),
        ('{"bench": "decode", "machine": {}, "results": [{"name": 1}]}', 3, "results[0]"),
        ('{"bench": "stream", "machine": {}, "results": []}', 2, "feeder-bench stream"),
    ],
)
def test_files_that_cannot_be_compared_give_one_error_line(
    before: Path,
    tmp_path: Path,
    content: str | None,
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    after = tmp_path / "b.json"
    if content is not None:
        after.write_text(content, encoding="latin-1")
    assert main(["compare", str(before), str(after)]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("feeder-bench: error: ")
    assert str(after) in line
    assert message in line


def test_verdicts_without_spread_or_common_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(value: float, unit: str = "MiB") -> Result:
        return Result(name="x", value=value, unit=unit, min=value, max=value)

    assert verdict_on(result(1.0), result(1.0)) == "same"
    assert verdict_on(result(1.0), result(2.0)) == "differs, noise unknown"
    assert verdict_on(result(1.0), result(1.0, "s")) == "not comparable: MiB and s"
    nothing = _write(tmp_path / "zero.json", [_row("x", 0.0, 0.0, 0.0)])
    assert main(["compare", str(nothing), str(nothing)]) == 0, "no ratio to zero"
    assert "same" in _line(capsys.readouterr().out, "x")


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
