"""Real machines as trees: what is read of them, what is found, and how it is shown."""

from pathlib import Path, PurePosixPath

import pytest

from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.table import find_all
from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_machine import read_machine
from feeder.doctor.read_system import read_load, read_processes
from feeder.doctor.report import format_report
from tests.doctor.conftest import DESCRIPTIONS
from tests.support.machine_tree import cgroup_v2, write_tree

pytestmark = pytest.mark.usefixtures("without_libraries")

PROCESSES = {"docker-host": "4711"}
DATASETS = {"xeon-snc": "/lustre/scratch/in", "desktop": "/home/ada/my sets/in"}
NAMES = sorted(path.stem for path in DESCRIPTIONS.glob("*.txt"))


def look(trees: dict[str, Path], name: str) -> Machine:
    dataset = Path(DATASETS.get(name, "/data/in"))
    return read_machine(trees[name], [dataset], PROCESSES.get(name, "self"))


@pytest.mark.parametrize("name", NAMES)
def test_the_report_has_every_fact_and_finding(trees: dict[str, Path], name: str) -> None:
    """``machines/NAME.report`` is what a user sees of the machine in NAME.txt."""
    machine = look(trees, name)
    report = format_report(machine, find_all(machine), 100)
    assert report.splitlines() == (DESCRIPTIONS / f"{name}.report").read_text("utf-8").splitlines()


def test_reserved_pages_that_a_program_has_mapped_are_not_free(tmp_path: Path) -> None:
    folder = "sys/kernel/mm/hugepages/hugepages-2048kB"
    counts = {"nr_hugepages": "100", "free_hugepages": "90", "resv_hugepages": "80"}
    write_tree(tmp_path, {f"{folder}/{name}": count for name, count in counts.items()})
    (pool,) = read_machine(tmp_path).memory.reserved
    assert (pool.total, pool.free) == (100, 10)


def test_another_machine_s_report_has_no_facts_of_this_one(tmp_path: Path) -> None:
    """An ARM machine of which little was copied."""
    quota = cgroup_v2("/", {".": "6400000 100000"})
    write_tree(tmp_path, {"sys/devices/system/cpu/online": "0-63", **quota})
    machine = read_machine(tmp_path)
    assert machine.allowed.cpus == {*range(64)}
    (node,) = machine.nodes
    assert (node.cpus, node.memory_bytes) == ({*range(64)}, 0)
    report = format_report(machine, find_all(machine), 80)
    assert "  usable CPUs   64, the CPU mask is not known: 0-63\n" in report
    assert "  node 0        CPUs 0-63, memory not known\n" in report


def test_a_container_s_dataset_is_where_the_container_sees_it(trees: dict[str, Path]) -> None:
    (place,) = look(trees, "docker-host").datasets
    assert (place.kind, place.source) == ("xfs", "/dev/nvme1n1p1")
    (place,) = read_machine(trees["docker-host"], [Path("/data/in")]).datasets
    assert (place.kind, place.source) == ("nfs4", "filer:/export")


def test_limits_of_another_process(trees: dict[str, Path], tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for number, cpus in (("self", "0-3"), ("71", "2")):
        (proc / number).mkdir(parents=True)
        (proc / number / "status").write_text(f"Cpus_allowed_list:\t{cpus}\n")
        (proc / number / "limits").write_text(f"Max open files  {len(cpus)}  {len(cpus)}  files\n")
    machine = read_machine(tmp_path, process="71")
    assert (machine.allowed.cpus, machine.limits.files_hard) == ({2}, 1)
    assert read_machine(tmp_path).allowed.cpus == {0, 1, 2, 3}


def test_this_machine_can_be_read() -> None:
    machine = read_machine(Path("/"), [Path.cwd()])
    assert machine.nodes
    assert machine.allowed.cpus
    assert machine.limits.files_hard
    assert machine.kernel
    assert not machine.unreadable
    assert all(PurePosixPath(place.mount).is_absolute() for place in machine.datasets)


@pytest.mark.parametrize(
    ("command", "is_daemon", "is_ours"),
    [
        ("/opt/bin/python3|/opt/bin/feeder|serve|--workers|2", True, True),
        ("/opt/bin/python3.11|-m|feeder|serve", True, True),
        ("python|-P|-X|faulthandler|-m|feeder.node|8|71", False, True),
        ("timeout|60|/opt/bin/feeder|serve", False, False),
        ("sh|-c|feeder serve --workers 2", False, False),
        ("/opt/bin/python3|/opt/bin/feeder|status", False, False),
        ("/opt/bin/python3|-m|pytest|feeder|serve", False, False),
        ("", False, False),
    ],
)
def test_processes_are_known_by_what_they_run(
    tmp_path: Path, command: str, is_daemon: bool, is_ours: bool
) -> None:
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    words = command.split("|") if command else []
    (folder / "cmdline").write_bytes(b"".join(f"{word}\0".encode() for word in words))
    (folder / "status").write_text("VmSwap:\t3 kB\n")
    ours, daemons, swapped_bytes = read_processes(KernelFiles(tmp_path))
    assert ours == ({71} if is_ours else set())
    assert daemons == ((71,) if is_daemon else ())
    assert swapped_bytes == (3072 if is_ours else 0)


def test_pressure_is_the_machine_s_or_the_cgroup_s_if_that_is_higher(tmp_path: Path) -> None:
    pressure = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.0 avg60=0 total=0"
    write_tree(
        tmp_path,
        {
            **cgroup_v2("/app", {"app": "max 100000"}),
            "proc/loadavg": "7.92 3.00 1.00 3/210 4711",
            "proc/pressure/cpu": pressure.format("62.50"),
            "proc/pressure/io": pressure.format("0.00"),
            "sys/fs/cgroup/app/cpu.pressure": pressure.format("12.00"),
            "sys/fs/cgroup/app/io.pressure": pressure.format("40.50"),
        },
    )
    load = read_load(KernelFiles(tmp_path))
    assert (load.average, load.cpu, load.io, load.memory) == (7.92, 0.625, 0.405, None)
    (tmp_path / "proc/pressure/cpu").write_text("some avg10=1e9 total=x")
    assert read_load(KernelFiles(tmp_path)).cpu == 0.12
