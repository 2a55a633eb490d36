"""Real machines as trees: what is read of them, what is found, and how it is shown."""

import json
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feeder.doctor.facts import Machine
from feeder.doctor.findings import find_all
from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.read_machine import read_machine
from feeder.doctor.read_system import read_load, read_processes
from feeder.doctor.report import find_worst, format_json, format_report
from tests.doctor.conftest import DESCRIPTIONS
from tests.support.machine_tree import cgroup_v2, read_description, write_tree

pytestmark = pytest.mark.usefixtures("without_libraries")

PROCESSES = {"docker-host": "4711"}
DATASETS = {
    "xeon-snc": ["/lustre/scratch/in"],
    "desktop": ["/home/ada/my sets/in"],
    "troubled": ["/mnt/nas/a's/in", "/mnt/image/in"],
}
DISK_CACHES = {
    "container-v2": "/var/cache/feeder",
    "desktop": "/home/ada/.cache/feeder",
    "troubled": "/mnt/nas/cache",
}
NAMES = sorted(path.stem for path in DESCRIPTIONS.glob("*.txt"))


def look(trees: dict[str, Path], name: str) -> Machine:
    datasets = [Path(path) for path in DATASETS.get(name, ["/data/in"])]
    folder = DISK_CACHES.get(name)
    disk_cache = (Path(folder), 200 << 30) if folder else None
    process = PROCESSES.get(name, "self")
    return read_machine(trees[name], datasets, process, disk_cache=disk_cache)


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


def test_limits_of_another_process(tmp_path: Path) -> None:
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
        ("python|-P|-m|feeder.node|8|71", False, True),
        ("sh|-c|feeder serve --workers 2", False, False),
        ("/opt/bin/python3|-m|pytest|feeder|serve", False, False),
    ],
)
def test_processes_are_known_by_what_they_run(
    tmp_path: Path, command: str, is_daemon: bool, is_ours: bool
) -> None:
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in command.split("|")))
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
def test_damaged_trees_are_reported_on(tmp_path: Path, data: st.DataObject) -> None:
    """Kernel files with any content, or none, never make the doctor fail."""
    name = data.draw(st.sampled_from(["desktop", "container-v1", "container-v2", "virtual-sse"]))
    files = read_description((DESCRIPTIONS / f"{name}.txt").read_text("utf-8"))
    root = tmp_path / name
    if not root.exists():
        write_tree(root, files)
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
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sys/devices/system/node/node0"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("many\n")
    first = find_all(read_machine(tmp_path))[0]
    assert (first.name, first.severity) == ("kernel-files", "error")
    assert first.mend[0].startswith(f"cat {folder}/cpulist ")
