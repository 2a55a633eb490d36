"""``feeder doctor`` from the command line: output, exit status, wrong arguments."""

import json
import sys
from pathlib import Path

import pytest

from feeder.doctor.findings.facts import Libraries
from tests.support.machine_tree import write_tree
from tests.support.sources import call_feeder, error_line, run_feeder


@pytest.fixture
def slow_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("feeder.doctor.read_machine.read_libraries", Libraries)
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    return write_tree(tmp_path, {clock: "hpet", "proc/swaps": "Filename", "proc/7/limits": ""})


def test_findings_give_status_1_and_a_sound_machine_0(slow_clock: Path) -> None:
    result = call_feeder("doctor", "--root", slow_clock)
    assert (result.returncode, result.stderr) == (1, "")
    assert "1. warning: the clock source is hpet" in result.stdout
    write_tree(slow_clock, {"proc/cpuinfo": "flags : sse2"})  # a note, which does not count
    (clock,) = slow_clock.rglob("current_clocksource")
    clock.write_text("tsc\n")
    result = call_feeder("doctor", "--root", slow_clock)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Nothing is wrong.\n\nNotes\n" in result.stdout


def test_json_is_one_object(slow_clock: Path) -> None:
    result = call_feeder("doctor", "--root", slow_clock, "--json", "--pid", "7")
    assert result.returncode == 1
    value = json.loads(result.stdout)
    assert [each["name"] for each in value["findings"]] == ["clock-source"]
    assert value["machine"]["process"] == "7"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--root", "/nowhere", "has no folder proc: "),
        ("--data", "/nowhere", "it does not exist; "),
        ("--pid", "-5", "there is no such process; "),
    ],
)
def test_a_wrong_argument_is_one_line_and_status_2(option: str, value: str, message: str) -> None:
    result = call_feeder("doctor", option, value)
    assert result.returncode == 2
    line = error_line(result).replace(f"{value}: ", f"{value} ")
    assert line.startswith(f"feeder: error: {option} {value} {message}")


def test_the_real_command_reports_on_this_machine() -> None:
    result = run_feeder("doctor", "--data", Path(sys.prefix))
    assert result.returncode in (0, 1), result.stderr
    assert "self-test passed" in result.stdout
    assert f"{sys.prefix}: " in result.stdout
    assert result.stderr == ""
