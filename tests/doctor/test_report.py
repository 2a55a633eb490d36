"""The report at several widths, and as JSON."""

import json
import re
from pathlib import Path

import pytest

from feeder.doctor.findings.conditions import find_all
from feeder.doctor.findings.facts import Libraries, Machine
from feeder.doctor.read_machine import read_machine
from feeder.doctor.report import format_json, format_report
from tests.doctor.test_machines import DATASETS, FOUND

pytestmark = pytest.mark.usefixtures("without_libraries")


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("name", FOUND)
def test_lines_fit_the_terminal(trees: dict[str, Path], name: str, width: int) -> None:
    machine = read_machine(trees[name], [Path(DATASETS.get(name, "/data/in"))])
    findings = find_all(machine)
    report = format_report(machine, findings, width)
    commands = {line.strip() for finding in findings for line in finding.mend}
    prose = [line for line in report.splitlines() if line.strip() not in commands]
    words = [line for line in prose if len(line.split()) > 2]  # a long word cannot be broken
    assert max(map(len, words)) <= max(width, 40)
    assert commands <= {line.strip() for line in report.splitlines()}, "commands are whole"
    if width >= 80:
        assert max(map(len, report.splitlines())) <= 80 + 20


def test_the_limit_of_locked_memory_is_a_fact(trees: dict[str, Path]) -> None:
    for name, limit in (("container-v2", "8 MiB"), ("epyc-nps4", "unlimited")):
        assert f"  locked memory {limit}\n" in format_report(read_machine(trees[name]), (), 80)


def test_the_soft_limit_of_files_is_the_daemon_s_to_raise(trees: dict[str, Path]) -> None:
    raised = "1,024 soft, 1,048,576 hard (the daemon raises its soft limit to this)"
    for name, text in (("desktop", raised), ("epyc-nps4", "65,536")):
        assert f"  open files    {text}\n" in format_report(read_machine(trees[name]), (), 100)


def test_the_daemon_that_is_shown_needs_no_option_to_show_it(trees: dict[str, Path]) -> None:
    root = trees["docker-host"]
    text = "  daemon        process 4711"
    assert f"{text}; --pid shows its limits, cgroup and CPUs\n" in (
        format_report(read_machine(root), (), 100)
    )
    assert f"{text}\n" in format_report(read_machine(root, process="4711"), (), 100)


def test_labels_are_aligned(trees: dict[str, Path]) -> None:
    machine = read_machine(trees["xeon-snc"])
    facts = format_report(machine, (), 80).split("\n\n")[1]
    assert all(re.match(r"  (\S.{13}|\s{14})\S", line) for line in facts.splitlines())


def test_problems_are_numbered_and_notes_come_last(trees: dict[str, Path]) -> None:
    machine = read_machine(trees["container-v2"], [Path("/data/in")])
    report = format_report(machine, find_all(machine), 80)
    assert "\n4 problems, the worst first\n" in report
    assert re.findall(r"^(\d)\. warning: ", report, re.MULTILINE) == [*"1234"]
    machine = read_machine(trees["epyc-nps4"])
    report = format_report(machine, find_all(machine), 80)
    assert "\n1 problem\n" in report
    assert report.index("\n1. warning: ") < report.index("\nNotes\n") < report.index("\n-  Acc")


def test_libraries_are_shown_with_their_builds() -> None:
    libraries = Libraries(
        versions={"pillow": "12 (AVX2)", "libzmq": "4.3.5", "numpy": "2.4"},
        crypto="libsodium",
        decoder="own (avx2)",
        self_test_problem="other pixels",
    )
    report = format_report(Machine(libraries=libraries), (), 80)
    assert "4.3.5, encrypting with libsodium" in report
    assert "own (avx2), self-test failed" in report
    assert "numpy 2.4" in report


def test_json_has_all_facts_and_findings(trees: dict[str, Path]) -> None:
    machine = read_machine(trees["container-v2"], [Path("/data/in")])
    value = json.loads(format_json(machine, find_all(machine)))
    assert value["machine"]["allowed"]["cpus"] == "0-3"
    assert [node["cpus"] for node in value["machine"]["nodes"]] == ["0-31", "32-63"]
    first = value["findings"][0]
    assert (first["name"], first["severity"]) == ("swap", "warning")
    assert {*first} == {"name", "severity", "what", "detail", "mend"}
