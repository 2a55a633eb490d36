"""Each finding by its facts: what triggers it, what does not, and the line that mends it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from feeder.daemon.config import load_config
from feeder.daemon.node_plan import plan_descriptors
from feeder.doctor.facts import (
    Accelerator,
    Allowed,
    BusyProcess,
    Clock,
    DatasetPlace,
    DiskCachePlace,
    Finding,
    Governor,
    HugePages,
    Libraries,
    Limits,
    Load,
    Machine,
    Memory,
    NetworkCard,
    Processor,
    SwapDevice,
)
from feeder.doctor.findings import FILES_WANTED, find_all
from feeder.host.topology import NumaNode
from tests.doctor.test_machines import look
from tests.support.sources import REPOSITORY

NODES = tuple(
    NumaNode(id=n, cpus=frozenset({2 * n, 2 * n + 1}), memory_bytes=1 << 30, memory_node=n)
    for n in range(2)
)
BARE = (NODES[0], replace(NODES[1], memory_bytes=0))
ALL = Allowed(cpus=frozenset(range(4)), memory_nodes=frozenset({0, 1}), count=4)
GPU = Accelerator(address="0000:01:00.0", name="NVIDIA 0x20b0", node=1)
CARD = NetworkCard(name="eth0", is_up=True, speed_mbit=100_000, node=0)
SLOW = replace(CARD, speed_mbit=1000)
PLAIN = "plain Pillow 13.0.0 is installed in place of Pillow-SIMD: slower; run `make setup`"
WITHOUT = "this Pillow was built without libwebp: packing quarantines WebP images; install it"
PERFORMANCE = Governor(
    name="performance", driver="acpi-cpufreq", cpus=4, least_khz=800_000, most_khz=3_200_000
)
SWAP = SwapDevice(name="/dev/sda2", size_bytes=1 << 30, used_bytes=0)
PAGE = HugePages(size_bytes=1 << 30, total=2, free=1)
BURN = BusyProcess(name="burn", pid=71, cpus=1.25)


def load(**fields: object) -> Machine:
    return Machine(allowed=ALL, load=Load(**fields))  # type: ignore[arg-type]


def libraries(vectors: str = "AVX2", **fields: object) -> Machine:
    found = Libraries(install="pip install it", **fields)  # type: ignore[arg-type]
    return Machine(processor=Processor(vectors=vectors), libraries=found)


def dataset(kind: str) -> Machine:
    return Machine(datasets=(DatasetPlace(path="/d/in", mount="/d", kind=kind, source="s:/x"),))


def disk_cache(kind: str = "ext4", **fields: object) -> Machine:
    """A machine of four cores on 10 Gbit/s."""
    place = {"path": "/c", "mount": "/", "kind": kind, "source": "d", **fields}
    cache = DiskCachePlace(**place)  # type: ignore[arg-type]
    return Machine(
        allowed=ALL, cards=(replace(CARD, speed_mbit=10_000, node=None),), disk_cache=cache
    )


FOUND: list[tuple[Machine, str, str]] = [
    (
        load(average=7.9, cpu=0.95, busy=(BURN,)),
        "warning cpu-pressure",
        r"CPUs 95 % of the last 10 s, load average 7\.9 on 4 CPUs; most CPU time is used by burn "
        r"\(process 71, 1\.2 CPUs\).* renice -n 19 -p 71",
    ),
    (load(average=7.9), "warning cpu-pressure", r"the load average is 7\.9 on 4 CPUs"),
    (
        Machine(nodes=NODES, allowed=replace(ALL, cpus=frozenset({2})), cards=(CARD,)),
        "note card-node",
        "eth0 is on node 0, where Feeder has no usable CPU",
    ),
    (Machine(unreadable=("/x is odd",)), "error kernel-files", "/x is odd.*cat /x "),
    (libraries(problem="no lib"), "error libraries", "no lib.*pip install it"),
    (
        libraries(missing=("psutil", "xxhash")),
        "error libraries",
        "these libraries are not installed in this environment: psutil, xxhash;.*pip install it",
    ),
    (
        libraries(self_test_problem="other pixels"),
        "error self-test",
        'other pixels.*decoder = "turbojpeg"',
    ),
    (
        libraries(pillow_problems=(PLAIN,), pillow_is_simd=False, pillow_has_avx2=False),
        "warning pillow",
        r"plain Pillow 13\.0\.0 .*31\.4 ms.*pip uninstall -y pillow CC='cc -mavx2' pip install",
    ),
    (
        libraries("AVX", pillow_problems=(WITHOUT,)),
        "warning pillow-formats",
        r"without libwebp; Packing quarantines WebP images\. .*libwebp-dev pip install",
    ),
    (
        libraries("AVX-512", pillow_has_avx2=False),
        "warning pillow-vectors",
        r"built for SSE4.*4\.8 ms.*-mavx2",
    ),
    (libraries(crypto="tweetnacl"), "warning crypto", "tweetnacl.*pyzmq"),
    (
        disk_cache(problem="Permission denied"),
        "error disk-cache",
        r"the disk cache cannot be in /c: Permission denied;.*sudo install -d -o feeder /c .*"
        r'disk_path = "/LOCAL/DISK"',
    ),
    (disk_cache("tmpfs"), "warning disk-cache-place", r"/c is in memory \(tmpfs\); .*reboot"),
    (
        disk_cache("overlay"),
        "warning disk-cache-place",
        r"own layer \(overlay\).*docker run --volume /LOCAL/DISK:/c",
    ),
    (disk_cache("virtiofs"), "warning disk-cache-place", r"read through the host \(virtiofs, d\)"),
    (
        disk_cache(free_bytes=300 << 30, used_bytes=100 << 30, budget_bytes=1 << 40),
        "warning disk-cache-room",
        r"disk_bytes is 1,024\.0 GiB, and the disk of /c has room for 400\.0 GiB; .*"
        r'disk_bytes = "360 GiB"',
    ),
    (
        disk_cache(free_bytes=300 << 30, full_bytes=140 << 30, budget_bytes=40 << 30),
        "note disk-cache-small",
        r"datasets in /c take 140\.0 GiB, and the disk cache may take 40\.0 GiB",
    ),
    (
        disk_cache(free_bytes=90 << 30, full_bytes=140 << 30, used_bytes=10 << 30),
        "note disk-cache-small",
        r"may take 100\.0 GiB",
    ),
    (
        disk_cache(write_bytes_a_s=300e6, read_bytes_a_s=2e9),
        "warning disk-cache-speed",
        r"writes 300 MB/s and reads 2,000; 4 cores read up to 720 MB/s",
    ),
]
SOUND: dict[str, Machine] = {
    "nothing is known": Machine(),
    "busy": load(average=5.9, cpu=0.3, memory=0.05, io=0.2, busy=(BURN,)),
    "tasks that wait for a disk": load(average=9.0, cpu=0.1),
    "busy by Feeder alone": replace(load(average=9.0, cpu=0.9), daemons=(7,)),
    "performance": Machine(governors=(PERFORMANCE,)),
    "a quota of all": Machine(allowed=replace(ALL, quota=4.0)),
    "ARM": Machine(processor=Processor(is_virtual=True)),
    "a card that is down": Machine(
        nodes=NODES, allowed=ALL, cards=(replace(CARD, is_up=False),), accelerators=(GPU,)
    ),
    "a node that is not used": Machine(
        nodes=BARE, allowed=replace(ALL, cpus=frozenset({0, 1}), count=2)
    ),
    "swap for others": Machine(
        memory=Memory(swap=(SWAP,), swap_limit_bytes=0, feeder_swapped_bytes=12 << 10)
    ),
    "few reserved pages": Machine(memory=Memory(total_bytes=20 << 30, reserved=(PAGE,))),
    "a local dataset": dataset("ext4"),
    "an automounter": dataset("autofs"),
    "a disk cache with room": disk_cache(
        free_bytes=300 << 30,
        full_bytes=140 << 30,
        budget_bytes=200 << 30,
        write_bytes_a_s=600e6,
        read_bytes_a_s=2e9,
    ),
    "a fast clock": Machine(clock=Clock(current="tsc", available=("tsc", "hpet"))),
    "enough files": Machine(limits=Limits(files_hard=FILES_WANTED)),
    "libsodium": libraries(crypto="libsodium"),
}


def text_of(finding: Finding) -> str:
    return " ".join(f"{finding.what}; {finding.detail} {' '.join(finding.mend)}".split())


def kind_of(finding: Finding) -> str:
    return f"{finding.severity} {finding.name}"


@pytest.mark.parametrize(("machine", "kind", "pattern"), FOUND)
def test_a_fault_is_found_and_explained(machine: Machine, kind: str, pattern: str) -> None:
    """Those that the machines of ``test_machines`` do not have."""
    (finding,) = find_all(machine)
    assert kind_of(finding) == kind
    assert re.search(pattern, text_of(finding)), text_of(finding)


@pytest.mark.parametrize("machine", SOUND.values(), ids=SOUND)
def test_a_sound_machine_has_no_finding(machine: Machine) -> None:
    assert find_all(machine) == ()


@pytest.mark.usefixtures("without_libraries")
def test_every_row_of_the_page_is_found_and_its_remedy_can_be_typed(trees: dict[str, Path]) -> None:
    machines = [machine for machine, *_ in FOUND] + [look(trees, name) for name in trees]
    findings = [finding for machine in machines for finding in find_all(machine)]
    page = (REPOSITORY / "docs/doctor.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \|", page, re.MULTILINE)
    assert {*map(kind_of, findings)} == {
        f"{severity} {name}"
        for name, column in rows
        for severity in re.findall("error|warning|note", column)
    }
    for finding in findings:
        assert bool(finding.mend) == (finding.severity != "note")
        for line in finding.mend:
            assert len(line) <= 80 - 7, "it fits a terminal, indented"
            assert not re.match(r"[A-Z]\w+=.*#", line), "systemd would take a comment as the value"


def test_errors_come_first_and_what_costs_more_throughput() -> None:
    machine = replace(
        libraries(crypto="none", problem="no lib"),
        load=Load(cpu=0.9),
        limits=Limits(files_hard=1),
        allowed=replace(ALL, quota=2.0),
        unreadable=("/x is odd",),
        clock=Clock(current="hpet"),
    )
    assert [finding.name for finding in find_all(machine)] == [
        *("libraries", "kernel-files", "cpu-pressure", "clock-source", "crypto", "open-files"),
        "cpu-quota",
    ]


@pytest.mark.parametrize("workers", [1, 128])
def test_wanted_files_are_enough_for_the_defaults(workers: int) -> None:
    binds = ("tcp://127.0.0.1:5555", "ipc:///run/feeder/socket")
    config = load_config(None, {"data": {"d": "/d"}, "serve.bind": binds})
    plan = plan_descriptors(FILES_WANTED, config, workers)
    assert plan.memories_max >= 512
    assert plan.open_shards == 512
