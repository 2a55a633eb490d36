"""The report at several widths, as JSON, by the command and in ``feeder serve``; its libraries."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feeder.doctor import report
from feeder.doctor.findings import find_all
from feeder.doctor.read_machine import read_libraries, read_machine
from feeder.doctor.report import find_worst, format_report
from feeder.errors import ResourceError
from feeder.installation import DAEMON_MODULES
from feeder.jpeg import libraries
from feeder.sample import self_test
from tests.doctor.test_machines import DATASETS, NAMES
from tests.support.daemon import Daemon, pack_small
from tests.support.machine_tree import write_tree
from tests.support.sources import REPOSITORY, call_feeder, error_line, run_feeder

pytestmark = pytest.mark.usefixtures("without_libraries")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_lines_fit_the_terminal(trees: dict[str, Path], width: int) -> None:
    for name in NAMES:
        machine = read_machine(trees[name], [Path(each) for each in DATASETS.get(name, ())])
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
    def fail(*_: object, is_brief: bool) -> None:
        raise MemoryError

    monkeypatch.setattr(report, "read_machine", fail)
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


# Libraries of this process


WITHOUT = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop().split())); "
"""Makes the import of the modules in the last argument fail, as if they were not installed."""


def test_this_environment_is_sound() -> None:
    found = read_libraries()
    assert {"pillow", "libjpeg-turbo", "libzmq", "PyTurboJPEG"} <= {*found.versions}
    assert (found.missing, found.problem, found.self_test_problem) == ((), "", "")
    assert found.pillow_problems == ()
    assert found.pillow_has_avx2 == libraries.cpu_has_avx2()
    assert found.decoder.startswith("own (")
    assert found.crypto == "libsodium", "pyzmq's wheels have it"


def test_all_libraries_of_the_daemon_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["daemon"]
    assert [*DAEMON_MODULES] == [re.split("[<>=]", line)[0] for line in needed]
    for name, module in DAEMON_MODULES.items():  # each that is missing is named
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert read_libraries().missing == (name,)


def test_the_report_needs_none_of_them() -> None:
    code = f"{WITHOUT}from feeder.__main__ import start; sys.exit(start())"
    result = subprocess.run(
        [sys.executable, "-c", code, "doctor", " ".join(DAEMON_MODULES.values())],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert "1. error: these libraries are not installed in this environment: numpy, " in (
        result.stdout
    )
    assert "  memory        " in result.stdout


def test_what_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ResourceError("it is broken: mend it")

    def damage() -> None:
        raise ImportError("xxhash: undefined symbol:\nXXH3")

    with monkeypatch.context() as patch:
        patch.setattr(self_test, "compute_self_test", refuse)
        assert read_libraries().self_test_problem == "it is broken: mend it"
    monkeypatch.setattr(libraries, "check_libraries", refuse)
    assert read_libraries().problem == "it is broken: mend it"
    monkeypatch.setattr(libraries, "check_libraries", damage)
    line = "a library does not load (xxhash: undefined symbol: XXH3): install it again"
    assert read_libraries().problem == line


# The command


@pytest.fixture
def slow_clock(tmp_path: Path) -> Path:
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    return write_tree(tmp_path, {clock: "hpet", "proc/swaps": "Filename"})


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


def test_json_is_one_object(trees: dict[str, Path]) -> None:
    result = call_feeder("doctor", "--root", trees["docker-host"], "--json", "--pid", "4711")
    value = json.loads(result.stdout)
    assert value["machine"]["process"] == "4711"
    assert " ".join(value["machine"]) == (
        "process kernel processor nodes allowed governors cards accelerators memory limits clock "
        "load datasets disk_cache daemons libraries unreadable"
    )
    assert value["machine"]["allowed"]["cpus"] == "0-31"
    assert {*value["findings"][0]} == {"name", "severity", "what", "detail", "mend"}


def disk_cache_of(*arguments: str | Path) -> tuple[str, int] | None:
    """The folder and budget of the disk cache that the command looks at."""
    result = call_feeder("doctor", "--json", *arguments)
    place = json.loads(result.stdout)["machine"]["disk_cache"]
    return place and (place["path"], place["budget_bytes"])


def test_the_disk_cache_is_the_one_that_feeder_serve_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.doctor.disk_cache._MEASURE_S", 0.01)
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path))
    config = tmp_path / "feeder.toml"
    remote = '[data]\nin = "s3://bucket/in"\n'
    texts = {
        "": None,
        remote: (str(tmp_path), 0),
        f'{remote}[cache]\ndisk_bytes = "1 GiB"\ndisk_path = "disk"\n': (
            str(tmp_path / "disk"),
            1 << 30,
        ),
        f'{remote}[cache]\ndir = "/srv"\n': ("/srv", 0),
    }
    for text, expected in texts.items():
        config.write_text(text)
        assert disk_cache_of("--config", config) == expected
    assert disk_cache_of("--disk-path", "/srv/x") == ("/srv/x", 0)
    assert disk_cache_of() is None, "nothing is in it"
    (tmp_path / "feeder-pieces").mkdir()
    assert disk_cache_of() == (str(tmp_path), 0)


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
