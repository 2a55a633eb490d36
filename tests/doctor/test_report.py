"""The report at several widths, as JSON, and as the warnings of ``feeder serve``."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.doctor import report
from feeder.doctor.findings.table import find_all
from feeder.doctor.read_machine import read_machine
from feeder.doctor.report import find_worst, format_json, format_report
from tests.doctor.test_machines import DATASETS, NAMES
from tests.support.daemon import Daemon, pack_small
from tests.support.machine_tree import write_tree
from tests.support.sources import REPOSITORY

pytestmark = pytest.mark.usefixtures("without_libraries")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_lines_fit_the_terminal(trees: dict[str, Path], width: int) -> None:
    for name in NAMES:
        machine = read_machine(trees[name], [Path(DATASETS.get(name, "/data/in"))])
        findings = find_all(machine)
        lines = format_report(machine, findings, width).splitlines()
        commands = {line.strip() for finding in findings for line in finding.mend}
        assert commands <= {line.strip() for line in lines}, "commands are whole"
        prose = [line for line in lines if line.strip() not in commands]
        words = [line for line in prose if len(line.split()) > 2]  # a long word cannot be broken
        assert max(map(len, words)) <= max(width, 40), name
        assert width < 80 or max(map(len, lines)) <= 80 + 20
        facts = "\n".join(lines).split("\n\n")[1].splitlines()
        assert all(re.match(r"  (\S.{13}|\s{14})\S", line) for line in facts), "they are aligned"


def test_json_has_all_facts_and_findings(trees: dict[str, Path]) -> None:
    machine = read_machine(trees["container-v2"], [Path("/data/in")])
    value = json.loads(format_json(machine, find_all(machine)))
    assert value["machine"]["allowed"]["cpus"] == "0-3"
    assert [node["cpus"] for node in value["machine"]["nodes"]] == ["0-31", "32-63"]
    first = value["findings"][0]
    assert (first["name"], first["severity"]) == ("swap", "warning")
    assert {*first} == {"name", "severity", "what", "detail", "mend"}


def test_the_worst_come_first_in_one_line_each(
    trees: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = find_worst(trees["container-v2"], [Path("/data/in")])
    assert [" ".join(line.split()[:3]) for line in lines] == [
        "swap is enabled",
        "the dataset /data/in",
        "the CPU mask",
    ]
    end = ": sudo systemctl set-property feeder MemorySwapMax=0; see `feeder doctor`"
    assert lines[0].endswith(end)
    (line,) = find_worst(trees["epyc-nps4"], [])  # a command of two lines, in one
    command = "sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    assert line.endswith(f": echo performance | {command}; see `feeder doctor`")
    assert len(find_worst(trees["container-v1"], [])) == 2, "a note is worth no line"
    assert not [line for line in find_worst(trees["desktop"], []) if "governor" in line]
    monkeypatch.setattr(report, "WARNINGS_MAX", 1)
    (line,) = find_worst(trees["container-v2"], [Path("/data/in")])
    assert line.endswith("see `feeder doctor`, with 2 more")


def test_finding_the_worst_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(report, "read_for_serving", fail)
    assert find_worst(Path("/"), []) == [
        "the machine could not be inspected (MemoryError); see `feeder doctor`"
    ]


def test_the_supervisor_loads_no_library_for_it() -> None:
    code = (
        "import sys; from pathlib import Path; from feeder.doctor.report import find_worst; "
        "find_worst(Path('/'), [Path('/')]); "
        "print({'zmq', 'numpy', 'PIL', 'turbojpeg'} & {*sys.modules})"
    )
    output = subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True)
    assert output == "set()\n"


def test_the_daemon_warns_once_at_its_start_and_serves(tmp_path: Path) -> None:
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    machine = write_tree(tmp_path / "machine", {clock: "hpet"})
    data = f"d={pack_small(tmp_path)}"
    options = ("--workers", "1", "--bind", f"ipc://{tmp_path}/socket", "--topology-root", machine)
    with Daemon("--data", data, *options) as daemon:
        warning = daemon.wait_line("the clock source is hpet")
        assert warning.rstrip().endswith("; see `feeder doctor`")
        assert sum("the clock source" in line for line in daemon.lines) == 1
        assert daemon.stop()[0] == 0
