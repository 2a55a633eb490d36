"""Each condition by its facts: what triggers it, what does not, and the line that mends it."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.daemon.config import load_config
from feeder.daemon.node_plan import plan_descriptors
from feeder.doctor.findings import cpus, datasets, governors, libraries, memory, system
from feeder.doctor.findings.conditions import CONDITIONS, Condition, find_all
from feeder.doctor.findings.facts import (
    Allowed,
    BusyProcess,
    Clock,
    Limits,
    Load,
    Machine,
    Memory,
    Processor,
)
from feeder.doctor.findings.finding import Finding, Severity
from tests.doctor.findings.machines import (
    ALL,
    CARD,
    GPU,
    NODES,
    SWAP,
    ZRAM,
    dataset,
    governed,
    pool,
    with_libraries,
)
from tests.support.sources import REPOSITORY

PLAIN = "plain Pillow 13.0.0 is installed in place of Pillow-SIMD: slower; run `make setup`"
WITHOUT = "this Pillow was built without libwebp: packing quarantines WebP images; install it"
BURN = BusyProcess(name="burn", pid=71, cpus=1.25)
CASES: list[tuple[Condition, str, Machine, str]] = [
    (
        system.find_pressure,
        "cpu",
        Machine(allowed=ALL, load=Load(average=7.9, cpu=0.95, busy=(BURN,))),
        r"CPUs 95 % of the last 10 s, load average 7\.9 on 4 CPUs; most CPU time is used by burn "
        r"\(process 71, 1\.2 CPUs\).* renice -n 19 -p 71",
    ),
    (
        system.find_pressure,
        "outside",
        Machine(allowed=ALL, load=Load(average=7.9, cpu=0.95)),
        "no process that can be seen here uses much.*CPUWeight=1000",
    ),
    (
        system.find_pressure,
        "no-psi",
        Machine(allowed=ALL, load=Load(average=7.9)),
        r"the load average is 7\.9 on 4 CPUs",
    ),
    (
        system.find_pressure,
        "memory",
        Machine(load=Load(memory=0.25)),
        "memory 25 % of the last 10 s.* ps -eo",
    ),
    (
        system.find_pressure,
        "storage",
        Machine(load=Load(io=0.6)),
        "storage 60 % of the last 10 s.* iotop",
    ),
    (governors.find_governor, "fixed", governed("powersave", "acpi-cpufreq"), r"800 .* 4\.0 times"),
    (
        governors.find_governor,
        "no-range",
        governed("powersave", "acpi-cpufreq", None),
        "at its lowest",
    ),
    (
        governors.find_governor,
        "own",
        governed("powersave", "intel_pstate", preference="balance_performance"),
        r"sets the clock by the load.* not measured\.$",
    ),
    (
        governors.find_governor,
        "own-and-saving",
        governed("powersave", "amd-pstate-epp", preference="balance_power"),
        r"sets the clock by the load.*energy preference is balance_power",
    ),
    (
        governors.find_governor,
        "load",
        governed("schedutil", ""),
        "schedutil on 4 of 4 usable CPUs;",
    ),
    (
        cpus.find_narrow_mask,
        "mask",
        Machine(allowed=replace(ALL, quota=8.5), processor=Processor(online=16)),
        r"4 CPUs, but the quota allows 8\.5.* 4 more could run.*set-property feeder AllowedCPUs=",
    ),
    (
        cpus.find_narrow_mask,
        "quota",
        Machine(allowed=replace(ALL, quota=1.5, count=1)),
        r"a quota of 1\.5 CPUs is spread over 4 CPUs.*1 worker\b",
    ),
    (
        cpus.find_missing_memory,
        "bare",
        Machine(nodes=(NODES[0], replace(NODES[1], memory_bytes=0)), allowed=ALL),
        "node 1 has CPUs but no memory.*dmidecode",
    ),
    (
        cpus.find_missing_memory,
        "mask",
        Machine(nodes=NODES, allowed=replace(ALL, memory_nodes=frozenset({0}))),
        "node 1 has usable CPUs, but .*AllowedMemoryNodes=0,1 .*--cpuset-mems 0,1",
    ),
    (
        cpus.find_memory_only_nodes,
        "cxl",
        Machine(nodes=(NODES[0], replace(NODES[1], cpus=frozenset()))),
        r"node 1 has memory \(1 GiB\) but no CPUs",
    ),
    (
        cpus.find_narrow_vectors,
        "virtual",
        Machine(processor=Processor(vectors="SSE4", is_virtual=True)),
        "virtual machine shows no AVX2.* 2,230 .*-cpu host",
    ),
    (
        cpus.find_narrow_vectors,
        "real",
        Machine(processor=Processor(vectors="SSE2")),
        "this CPU has no AVX2",
    ),
    (
        cpus.find_far_cards,
        "card",
        Machine(nodes=NODES, allowed=replace(ALL, cpus=frozenset({2})), cards=(CARD,)),
        "eth0 is on node 0, where Feeder has no usable CPU",
    ),
    (
        cpus.find_far_cards,
        "accelerator",
        Machine(nodes=NODES, allowed=ALL, cards=(CARD,), accelerators=(GPU,)),
        "accelerators on node 1 have no network card",
    ),
    (
        cpus.find_far_cards,
        "bandwidth",
        Machine(allowed=ALL, cards=(replace(CARD, speed_mbit=1000),)),
        "at most 830 images/s .*; 1 of 4 cores make",
    ),
    (
        memory.find_swap,
        "enabled",
        Machine(memory=Memory(swap=SWAP)),
        r"1\.0 GiB, none in use.*MemorySwapMax=0",
    ),
    (
        memory.find_swap,
        "swapped",
        Machine(memory=Memory(feeder_swapped_bytes=16 << 20, swap=SWAP, swap_limit_bytes=0)),
        "16 MiB of Feeder's processes are swapped out",
    ),
    (
        memory.find_swap,
        "little",
        Machine(
            memory=Memory(
                feeder_swapped_bytes=12 << 10, swap=(replace(SWAP[0], used_bytes=12 << 10),)
            )
        ),
        r"swap is enabled \(1\.0 GiB, 0\.0117 MiB in use\) and may take Feeder's memory",
    ),
    (
        memory.find_swap,
        "version-1",
        Machine(memory=Memory(swap=SWAP, cgroup_version=1)),
        r"disk, not for memory\. sudo swapoff -a .*docker run --memory",
    ),
    (
        memory.find_swap,
        "zram",
        Machine(memory=Memory(swap=ZRAM)),
        r"swap is enabled in compressed memory \(zram, 1\.0 GiB, none in use\)",
    ),
    (
        memory.find_swap,
        "swapped-to-zram",
        Machine(memory=Memory(feeder_swapped_bytes=20 << 20, swap=ZRAM)),
        r"20 MiB of Feeder's processes are swapped out to compressed memory \(zram\)",
    ),
    (
        memory.find_swap,
        "zram-and-disk",
        Machine(memory=Memory(swap=ZRAM + SWAP)),
        r"swap is enabled \(1\.0 GiB, none in use\)",
    ),
    (memory.find_reserved_pages, "much", pool(2), r"2\.0 GiB, 10%.*echo 1 .*hugepages-1048576kB/"),
    (system.find_unreadable, "file", Machine(unreadable=("/x is odd",)), "/x is odd.*cat /x "),
    (datasets.find_remote_datasets, "nfs", dataset("nfs4"), r"/d/in is on .*nfs4.*cp -r /d/in "),
    (
        datasets.find_indirect_datasets,
        "user-space",
        dataset("fuse.squashfuse"),
        r"/d/in is read through user space \(fuse\.squashfuse, .*waits for another process",
    ),
    (
        datasets.find_indirect_datasets,
        "host",
        dataset("9p"),
        r"/d/in is read through the host \(9p, .*waits for the virtual machine's host",
    ),
    (
        system.find_slow_clock,
        "better",
        Machine(clock=Clock(current="hpet", available=("hpet", "tsc"))),
        "source is hpet.*280 ns.*echo tsc . sudo tee .*/current_clocksource",
    ),
    (
        system.find_slow_clock,
        "none-better",
        Machine(clock=Clock(current="acpi_pm", available=("acpi_pm",))),
        "dmesg.*tsc=reliable",
    ),
    (system.find_few_files, "hard", Machine(limits=Limits(files_hard=1024)), "1,024.*LimitNOFILE="),
    (
        libraries.find_broken_libraries,
        "load",
        with_libraries(problem="no lib", install="pip install it"),
        "no lib.*pip install it",
    ),
    (
        libraries.find_broken_libraries,
        "missing",
        with_libraries(missing=("psutil", "xxhash"), install="pip install it"),
        "these libraries are not installed in this environment: psutil, xxhash;.*pip install it",
    ),
    (
        libraries.find_broken_libraries,
        "self-test",
        with_libraries(self_test_problem="other pixels"),
        'other pixels.*decoder = "turbojpeg"',
    ),
    (
        libraries.find_pillow,
        "plain",
        with_libraries(pillow_problems=(PLAIN,), pillow_is_simd=False, pillow_has_avx2=False),
        r"plain Pillow 13\.0\.0 .*31\.4 ms.*pip uninstall -y pillow CC='cc -mavx2' pip install",
    ),
    (
        libraries.find_pillow,
        "formats",
        with_libraries("SSE4", pillow_problems=(WITHOUT,)),
        r"without libwebp; Packing quarantines WebP images\. .*libwebp-dev pip install",
    ),
    (
        libraries.find_pillow,
        "sse4",
        with_libraries("AVX-512", pillow_has_avx2=False),
        r"built for SSE4.*4\.8 ms.*-mavx2",
    ),
    (libraries.find_weak_crypto, "none", with_libraries(crypto="none"), "without encryption"),
    (libraries.find_weak_crypto, "weak", with_libraries(crypto="tweetnacl"), "tweetnacl.*pyzmq"),
]
SOUND: list[tuple[Condition, str, Machine]] = [
    (
        system.find_pressure,
        "busy",
        Machine(allowed=ALL, load=Load(average=5.9, cpu=0.3, memory=0.05, io=0.2, busy=(BURN,))),
    ),
    (governors.find_governor, "performance", governed("performance", "acpi-cpufreq")),
    (cpus.find_narrow_mask, "equal", Machine(allowed=replace(ALL, quota=4.0))),
    (
        cpus.find_narrow_mask,
        "beyond-the-machine",
        Machine(allowed=replace(ALL, quota=64.0), processor=Processor(online=4)),
    ),
    (
        cpus.find_missing_memory,
        "unused-node",
        Machine(
            nodes=(NODES[0], replace(NODES[1], memory_bytes=0)),
            allowed=replace(ALL, cpus=frozenset({0})),
        ),
    ),
    (
        cpus.find_missing_memory,
        "not-known",
        Machine(nodes=tuple(replace(node, memory_bytes=0) for node in NODES), allowed=ALL),
    ),
    (cpus.find_narrow_vectors, "arm", Machine(processor=Processor(is_virtual=True))),
    (
        cpus.find_far_cards,
        "down",
        Machine(nodes=NODES, allowed=ALL, cards=(replace(CARD, is_up=False),), accelerators=(GPU,)),
    ),
    (
        cpus.find_far_cards,
        "one-of-unknown-speed",
        Machine(
            allowed=ALL,
            cards=(replace(CARD, speed_mbit=1000), replace(CARD, name="b", speed_mbit=None)),
        ),
    ),
    (memory.find_swap, "limited", Machine(memory=Memory(swap=SWAP, swap_limit_bytes=0))),
    (
        memory.find_swap,
        "little-and-limited",
        Machine(memory=Memory(feeder_swapped_bytes=12 << 10, swap=SWAP, swap_limit_bytes=0)),
    ),
    (memory.find_reserved_pages, "few", pool(1)),
    (datasets.find_remote_datasets, "local", dataset("ext4")),
    (datasets.find_remote_datasets, "user-space", dataset("fuse.bindfs")),
    (datasets.find_indirect_datasets, "local", dataset("ext4")),
    (datasets.find_indirect_datasets, "remote", dataset("fuse.sshfs")),
    (datasets.find_indirect_datasets, "automounter", dataset("autofs")),
    (system.find_slow_clock, "tsc", Machine(clock=Clock(current="tsc", available=("hpet",)))),
    (system.find_slow_clock, "arm", Machine(clock=Clock(current="arch_sys_counter"))),
    (system.find_few_files, "enough", Machine(limits=Limits(files_hard=system.FILES_WANTED))),
    (libraries.find_pillow, "old-cpu", with_libraries("SSE4", pillow_has_avx2=False)),
    (libraries.find_weak_crypto, "libsodium", with_libraries(crypto="libsodium")),
    (libraries.find_weak_crypto, "unknown", with_libraries(crypto="unknown")),
]


def text_of(finding: Finding) -> str:
    return " ".join(f"{finding.what}; {finding.detail} {' '.join(finding.mend)}".split())


@pytest.mark.parametrize(
    ("condition", "machine", "pattern"),
    [
        pytest.param(condition, machine, pattern, id=f"{condition.__name__}-{name}")
        for condition, name, machine, pattern in CASES
    ],
)
def test_a_condition_is_found_and_explained(
    condition: Condition, machine: Machine, pattern: str
) -> None:
    (finding,) = condition(machine)
    assert re.search(pattern, text_of(finding)), text_of(finding)
    assert finding.mend or finding.severity == Severity.NOTE
    assert finding in find_all(machine)
    assert max(map(len, finding.mend), default=0) <= 80 - 7, "it fits a terminal, indented"
    for line in finding.mend:
        assert not re.match(r"[A-Z]\w+=.*#", line), "systemd would take a comment as the value"


@pytest.mark.parametrize(
    ("condition", "machine"),
    [
        pytest.param(condition, machine, id=f"{condition.__name__}-{name}")
        for condition, name, machine in SOUND
    ],
)
def test_a_sound_machine_has_no_finding(condition: Condition, machine: Machine) -> None:
    assert [*condition(machine)] == []


def test_every_condition_is_tested() -> None:
    assert {condition for condition, *_ in CASES} == {*CONDITIONS}


def test_load_that_is_feeder_s_own_is_no_finding() -> None:
    assert find_all(Machine(allowed=ALL, load=Load(average=9.0, cpu=0.9), daemons=(7,))) == ()


def test_what_is_not_known_is_not_wrong() -> None:
    assert find_all(Machine()) == ()


@given(st.lists(st.sampled_from([machine for _, _, machine, _ in CASES]), max_size=4))
def test_the_worst_come_first(machines: list[Machine]) -> None:
    merged = Machine(
        governors=tuple(governor for machine in machines for governor in machine.governors),
        unreadable=tuple(line for machine in machines for line in machine.unreadable),
        datasets=tuple(place for machine in machines for place in machine.datasets),
        allowed=next((each.allowed for each in machines if each.allowed.quota), Allowed()),
    )
    severities = [finding.severity for finding in find_all(merged)]
    assert severities == sorted(severities, reverse=True)


@pytest.mark.parametrize("workers", [1, 16, 128])
def test_wanted_files_are_enough_for_the_defaults(workers: int) -> None:
    binds = ("tcp://127.0.0.1:5555", "ipc:///run/feeder/socket")
    config = load_config(None, {"data": {"d": "/d"}, "serve.bind": binds})
    plan = plan_descriptors(system.FILES_WANTED, config, workers)
    assert plan.memories_max >= 512
    assert plan.open_shards == 512


def test_the_page_lists_every_finding() -> None:
    sources = (REPOSITORY / "feeder/doctor/findings").glob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    names = set(re.findall(r'name="([a-z-]+)"', text)) | {"pillow", "pillow-formats"}
    page = (REPOSITORY / "docs/doctor.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \| (?:error|warning|note)", page, re.MULTILINE)
    assert sorted(names) == sorted(listed)
