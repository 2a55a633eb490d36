"""Kernel files with any content, or none, never make the doctor fail."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feeder.doctor.findings.table import find_all
from feeder.doctor.read_machine import read_machine
from feeder.doctor.report import find_worst, format_json, format_report
from tests.doctor.conftest import DESCRIPTIONS
from tests.support.machine_tree import read_description, write_tree

NAMES = ("desktop", "container-v1", "container-v2", "virtual-sse")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, str]]]:
    """Trees of our own, and the files of each."""
    made: list[tuple[Path, dict[str, str]]] = []
    for name in NAMES:
        files = read_description((DESCRIPTIONS / f"{name}.txt").read_text("utf-8"))
        made.append((write_tree(tmp_path_factory.mktemp(name), files), files))
    return made


CONTENTS = st.one_of(
    st.none(),  # the file is missing
    st.sampled_from(
        [b"", b"\0", b"-1", b"0", b"max", b"9" * 30, b"0-99999999", b"3-1", b"\xff\xfe"]
    ),
    st.sampled_from([b"a:b", b": - ", b"0::/../..", b"1 2 3 4 /\\000 - cgroup2 x y", b"[", b"[]"]),
    st.binary(max_size=40),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
@pytest.mark.usefixtures("without_libraries")
def test_damaged_trees_are_reported_on(
    machines: list[tuple[Path, dict[str, str]]], data: st.DataObject
) -> None:
    root, files = data.draw(st.sampled_from(machines))
    damage = data.draw(st.dictionaries(st.sampled_from(sorted(files)), CONTENTS, max_size=12))
    datasets = [Path("/data/in"), Path("relative")]
    for name, content in damage.items():
        if content is None:
            (root / name).unlink()
        else:
            (root / name).write_bytes(content)
    try:
        machine = read_machine(root, datasets)
        worst = find_worst(root, datasets)
    finally:
        write_tree(root, {name: files[name] for name in damage})
    findings = find_all(machine)
    report = format_report(machine, findings, data.draw(st.integers(0, 200)))
    assert "The machine as Feeder sees it" in report
    assert all(line.isprintable() for line in report.splitlines())
    assert json.loads(format_json(machine, findings))["machine"]["process"] == "self"
    assert len(worst) <= 3
    assert all("\n" not in line for line in worst)


def test_a_file_that_the_daemon_cannot_parse_is_an_error(
    trees: dict[str, Path], tmp_path: Path, without_libraries: None
) -> None:
    folder = tmp_path / "sys/devices/system/node/node0"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("many\n")
    first = find_all(read_machine(tmp_path))[0]
    assert (first.name, first.severity.name) == ("kernel-files", "ERROR")
    assert first.mend[0].startswith(f"cat {folder}/cpulist ")
