"""What ``feeder serve`` warns of at its start."""

import subprocess
import sys
from pathlib import Path

import pytest

from feeder.doctor import worst
from tests.support.sources import REPOSITORY


def test_the_worst_come_first_in_one_line_each(trees: dict[str, Path]) -> None:
    lines = worst.find_worst(trees["container-v2"], [Path("/data/in")])
    assert [line.split()[0:3] for line in lines] == [
        ["swap", "is", "enabled"],
        ["the", "dataset", "/data/in"],
        ["the", "CPU", "mask"],
    ]
    assert lines[0].endswith(
        ": sudo systemctl set-property feeder MemorySwapMax=0; see `feeder doctor`"
    )


def test_a_command_of_two_lines_becomes_one(trees: dict[str, Path]) -> None:
    (line,) = worst.find_worst(trees["epyc-nps4"], [])
    command = "sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    assert line.endswith(f": echo performance | {command}; see `feeder doctor`")


def test_more_than_three_are_counted(
    trees: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worst, "WARNINGS_MAX", 1)
    (line,) = worst.find_worst(trees["container-v2"], [Path("/data/in")])
    assert line.endswith("see `feeder doctor`, with 2 more")


def test_notes_are_not_worth_a_line(trees: dict[str, Path]) -> None:
    assert len(worst.find_worst(trees["container-v1"], [])) == 2  # and a note
    assert not [line for line in worst.find_worst(trees["desktop"], []) if "governor" in line]


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(worst, "read_for_serving", fail)
    assert worst.find_worst(Path("/"), []) == [
        "the machine could not be inspected (MemoryError); see `feeder doctor`"
    ]


def test_the_supervisor_loads_no_library_for_it() -> None:
    code = (
        "import sys; from pathlib import Path; from feeder.doctor.worst import find_worst; "
        "find_worst(Path('/'), [Path('/')]); "
        "print({'zmq', 'numpy', 'PIL', 'turbojpeg'} & {*sys.modules})"
    )
    output = subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True)
    assert output == "set()\n"
