"""Real machines as trees: what is read of them, and what is found."""

from pathlib import Path, PurePosixPath

import pytest

from feeder.doctor.findings.facts import UNLIMITED, Machine
from feeder.doctor.findings.table import Severity, find_all
from feeder.doctor.read_machine import read_machine
from feeder.doctor.report import format_report
from tests.support.machine_tree import cgroup_v2, write_tree

pytestmark = pytest.mark.usefixtures("without_libraries")

PROCESSES = {"docker-host": "4711"}
DATASETS = {"xeon-snc": "/lustre/scratch/in", "desktop": "/home/ada/my sets/in"}
FOUND = {
    "container-v1": "memory-mask clock-source | cpu-quota",
    "container-v2": "swap remote-dataset cpu-mask open-files |",
    "desktop": "swap remote-dataset | cpu-governor card-bandwidth",
    "docker-host": "| cpu-quota",
    "epyc-nps4": "cpu-governor | accelerator-node card-bandwidth",
    "ryzen-hpet": "cpu-governor clock-source |",
    "virtual-sse": "cpu-vectors | node-without-cpus",
    "xeon-snc": "swap remote-dataset node-without-memory huge-pages |",
}


def look(trees: dict[str, Path], name: str) -> Machine:
    dataset = Path(DATASETS.get(name, "/data/in"))
    return read_machine(trees[name], [dataset], PROCESSES.get(name, "self"))


@pytest.mark.parametrize("name", FOUND)
def test_each_machine_has_exactly_its_problems_and_notes(trees: dict[str, Path], name: str) -> None:
    findings = find_all(look(trees, name))
    problems = [each.name for each in findings if each.severity > Severity.NOTE]
    notes = [each.name for each in findings if each.severity == Severity.NOTE]
    assert " ".join([*problems, "|", *notes]) == FOUND[name]
    assert {*trees} == {*FOUND}, "every description is tested"


def test_eight_nodes_of_two_sockets(trees: dict[str, Path]) -> None:
    machine = look(trees, "epyc-nps4")
    assert machine.nodes[7].cpus == {*range(112, 128), *range(240, 256)}
    assert [node.id for node in machine.nodes] == [*range(8)]
    assert (machine.processor.cores, machine.processor.threads) == (128, 2)
    assert machine.allowed.count == machine.processor.online == 256
    (governor,) = machine.governors
    assert (governor.name, governor.driver, governor.cpus) == ("ondemand", "acpi-cpufreq", 256)
    assert {(each.name, each.node) for each in machine.accelerators} == {
        ("NVIDIA A100-SXM4-40GB", node) for node in (1, 3, 5, 7)
    }
    assert len(machine.accelerators) == 8, "the console's ASPEED is none"
    assert [(card.name, card.is_up, card.speed_mbit, card.node) for card in machine.cards] == [
        ("enp225s0f0", True, 100_000, 4),
        ("enp225s0f1", False, None, 4),
    ]
    assert machine.limits.locked_bytes == UNLIMITED
    assert machine.memory.swap_limit_bytes == 0


def test_clustered_sockets_and_a_node_without_memory(trees: dict[str, Path]) -> None:
    machine = look(trees, "xeon-snc")
    assert [len(node.cpus) for node in machine.nodes] == [20] * 4
    assert [node.memory_node for node in machine.nodes] == [0, 1, 2, 2]
    assert machine.memory.limit_bytes is None, "version 1 writes a huge number for no limit"
    assert machine.memory.feeder_swapped_bytes == (2048 + 342016) * 1024, "vim's does not count"
    assert machine.daemons == (4711,)
    (pool,) = machine.memory.reserved
    assert (pool.size_bytes, pool.total, pool.free) == (1 << 30, 32, 30)


def test_reserved_pages_that_a_program_has_mapped_are_not_free(tmp_path: Path) -> None:
    folder = "sys/kernel/mm/hugepages/hugepages-2048kB"
    counts = {"nr_hugepages": "100", "free_hugepages": "90", "resv_hugepages": "80"}
    write_tree(tmp_path, {f"{folder}/{name}": count for name, count in counts.items()})
    (pool,) = read_machine(tmp_path).memory.reserved
    assert (pool.total, pool.free) == (100, 10)


@pytest.mark.parametrize(
    ("state", "is_up"),
    [("up", True), ("unknown", True), ("down", False), ("lowerlayerdown", False), ("", False)],
)
def test_a_card_whose_driver_sets_no_state_is_up(tmp_path: Path, state: str, is_up: bool) -> None:
    folder = "sys/class/net/eth0"
    write_tree(tmp_path, {f"{folder}/operstate": state, f"{folder}/device/vendor": "0x1af4"})
    (card,) = read_machine(tmp_path).cards
    assert card.is_up == is_up


def test_a_kernel_without_nodes_has_one(trees: dict[str, Path]) -> None:
    machine = look(trees, "ryzen-hpet")
    (node,) = machine.nodes
    assert node.cpus == {*range(12)}
    assert node.memory_bytes == 16374860 * 1024, "of the tree, not of the machine of this test"
    assert (machine.processor.cores, machine.processor.threads) == (6, 2)


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


def test_nothing_copied_is_nothing_known(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert (machine.allowed.cpus, machine.allowed.count, machine.nodes) == (set(), 0, ())
    assert "  usable CPUs   not known\n" in format_report(machine, (), 80)
    write_tree(tmp_path, {"proc/meminfo": "MemTotal: 2048 kB"})
    assert read_machine(tmp_path).nodes == (), "memory without CPUs is not CXL here"


@pytest.mark.parametrize(
    ("name", "quota", "count", "cpuset", "limit"),
    [
        pytest.param("container-v2", 8.0, 4, "0-3", 32 << 30, id="v2"),
        pytest.param("container-v1", 2.0, 2, "0-15", 16 << 30, id="v1"),
        pytest.param("docker-host", 2.0, 2, "0-31", 1 << 30, id="from-the-host"),
    ],
)
def test_containers_have_quotas_cpusets_and_limits(
    trees: dict[str, Path], name: str, quota: float, count: int, cpuset: str, limit: int
) -> None:
    machine = look(trees, name)
    allowed = machine.allowed
    assert (allowed.quota, allowed.count, allowed.cpuset) == (quota, count, cpuset)
    assert machine.memory.limit_bytes == limit
    assert machine.memory.swap_limit_bytes == (32 << 30 if name == "container-v2" else 0)


def test_the_version_is_that_of_the_memory_controller(trees: dict[str, Path]) -> None:
    versions = {name: look(trees, name).memory.cgroup_version for name in FOUND}
    assert versions == {
        **dict.fromkeys(("container-v1", "xeon-snc"), 1),
        **dict.fromkeys(("container-v2", "desktop", "docker-host", "epyc-nps4"), 2),
        **dict.fromkeys(("ryzen-hpet", "virtual-sse")),
    }


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
