"""`feeder.host.topology` on machines of every kind."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, ResourceError
from feeder.host.topology import format_cpulist, parse_cpulist, read_topology, usable_cpus
from tests.support.machine_tree import cgroup_v1, cgroup_v2, node, two_nodes, write_tree

EIGHT = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("5", {5}),
        ("0-3", {0, 1, 2, 3}),
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        (" 0 , 2-2 ", {0, 2}),
    ],
)
def test_cpulist_syntax(text: str, cpus: set[int]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1..3", "0x1", "1;2", "65536", "٣"])
def test_malformed_cpulist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a CPU or a range of CPUs"):
        parse_cpulist(text)


@given(st.frozensets(st.integers(0, 300)))
def test_cpulist_survives_a_round_trip(cpus: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == cpus


def test_cpulist_is_written_as_the_kernel_does() -> None:
    assert format_cpulist({11, 10, 8, 3, 2, 1, 0}) == "0-3,8,10-11"
    assert format_cpulist(()) == ""


def test_two_nodes(tmp_path: Path) -> None:
    first, second = read_topology(two_nodes(tmp_path))
    assert (first.id, first.cpus, first.memory_bytes) == (0, frozenset(range(4)), 1 << 30)
    assert (second.id, second.cpus, second.memory_node) == (1, frozenset(range(4, 8)), 1)


def test_one_node(tmp_path: Path) -> None:
    nodes = read_topology(write_tree(tmp_path, node(0, "0-1", 2048)))
    assert [n.cpus for n in nodes] == [{0, 1}]
    assert [n.memory_bytes > 0 for n in nodes] == [True]


def test_holes_in_the_numbering_and_order_by_number(tmp_path: Path) -> None:
    tree = node(16, "8-15", 1024) | node(8, "4-7", 1024) | node(0, "0-3", 1024)
    assert [n.id for n in read_topology(write_tree(tmp_path, tree))] == [0, 8, 16]


def test_memory_only_node_has_no_cpus(tmp_path: Path) -> None:
    tree = node(0, "0-3", 1024) | node(1, "", 4096)
    nodes = read_topology(write_tree(tmp_path, tree))
    assert nodes[1].cpus == frozenset()
    assert [n.memory_bytes > 0 for n in nodes] == [True, True]


def test_node_without_memory_uses_the_nearest(tmp_path: Path) -> None:
    tree = (
        node(0, "0-1", 1024, "10 31 21 31")
        | node(1, "2-3", 1024, "31 10 31 21")
        | node(2, "4-5", 0, "21 31 10 31")
        | node(7, "6-7", 0, "31 21 31 10")
    )
    nodes = read_topology(write_tree(tmp_path, tree))
    assert {n.id: n.memory_node for n in nodes} == {0: 0, 1: 1, 2: 0, 7: 1}


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    tree = node(0, "0-3", 1024) | node(1, "4-7", 1024) | {"sys/devices/system/cpu/online": "0-4,6"}
    assert [n.cpus for n in read_topology(write_tree(tmp_path, tree))] == [
        {0, 1, 2, 3},
        {4, 6},
    ]


def test_no_node_directory_is_one_node_with_all_online_cpus(tmp_path: Path) -> None:
    files = {"sys/devices/system/cpu/online": "0-5", "proc/meminfo": "MemTotal:   2048 kB"}
    (only,) = read_topology(write_tree(tmp_path, files))
    assert (only.cpus, only.memory_node) == (frozenset(range(6)), None)
    assert only.memory_bytes == 2048 * 1024
    (tmp_path / "proc/meminfo").unlink()
    assert read_topology(tmp_path)[0].memory_bytes == 0, "not that of another machine"


def test_empty_root_falls_back_to_what_this_process_may_use(tmp_path: Path) -> None:
    (only,) = read_topology(tmp_path)
    assert only.cpus == os.sched_getaffinity(0)
    assert read_topology(tmp_path, EIGHT)[0].cpus == EIGHT


def test_malformed_sysfs_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="node0/cpulist cannot be parsed"):
        read_topology(write_tree(tmp_path, node(0, "zero", 1024)))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("proc/self/cgroup", b"no colons"),
        ("sys/fs/cgroup/cpu.max", b"many 100000"),
        ("sys/fs/cgroup/cpu.max", b"100000 0"),
        ("sys/fs/cgroup/cpu.max", b"1" * 5000 + b" 100000"),
        ("sys/fs/cgroup/cpu.max", b"-5 100000"),
        ("sys/fs/cgroup/cpu.max", b"0 100000"),
    ],
)
def test_malformed_quota_file_is_named(tmp_path: Path, file: str, text: bytes) -> None:
    write_tree(tmp_path, cgroup_v2("/", {".": "max 1"}))
    (tmp_path / file).write_bytes(text)
    with pytest.raises(ResourceError, match=f"{file} cannot be parsed: "):
        usable_cpus(tmp_path, EIGHT)


@pytest.mark.parametrize(
    ("file", "text"), [("cpulist", b"0-3\xff"), ("distance", b"ten 21"), ("distance", b"1" * 5000)]
)
def test_malformed_node_file_is_named(tmp_path: Path, file: str, text: bytes) -> None:
    write_tree(tmp_path, node(0, "0-3", 0, "10 21") | node(1, "4-7", 1 << 20))
    (tmp_path / "sys/devices/system/node/node0" / file).write_bytes(text)
    with pytest.raises(ResourceError, match=f"node0/{file} cannot be parsed: "):
        read_topology(tmp_path)


def test_malformed_v1_quota_file_is_named(tmp_path: Path) -> None:
    root = write_tree(tmp_path, cgroup_v1("/", {".": (50_000, 0)}))
    with pytest.raises(ResourceError, match=r"cpu.cfs_period_us cannot be parsed"):
        usable_cpus(root, EIGHT)


def test_odd_mount_points_are_accepted(tmp_path: Path) -> None:
    root = write_tree(tmp_path, cgroup_v2("/", {".": "400000 100000"}))
    with (root / "proc/self/mountinfo").open("ab") as mounts:
        mounts.write(b"31 23 0:26 / /sys\\000 rw - cgroup2 cgroup2 rw\n")
        mounts.write(b"32 23 0:26 / /\xff\xfe rw - cgroup2 cgroup2 rw\n")
    assert usable_cpus(root, EIGHT).count == 4


def test_topology_of_this_machine_covers_the_affinity() -> None:
    nodes = read_topology()
    assert frozenset(os.sched_getaffinity(0)) <= frozenset().union(*(n.cpus for n in nodes))


def test_without_a_quota_affinity_counts(tmp_path: Path) -> None:
    usable = usable_cpus(tmp_path, EIGHT)
    assert (usable.count, usable.quota) == (8, None)
    assert usable.reason == "8 = affinity 8, no cgroup quota"


def test_quota_below_affinity_counts(tmp_path: Path) -> None:
    root = write_tree(tmp_path, cgroup_v2("/", {".": "400000 100000"}))
    usable = usable_cpus(root, EIGHT)
    assert (usable.count, usable.quota) == (4, 4.0)
    assert usable.reason == "4 = min(affinity 8, cgroup quota 4.0)"


@pytest.mark.parametrize(("microseconds", "count"), [(50_000, 1), (250_000, 2), (9_900_000, 8)])
def test_part_of_a_cpu_rounds_down_but_never_to_none(
    tmp_path: Path, microseconds: int, count: int
) -> None:
    root = write_tree(tmp_path, cgroup_v2("/", {".": f"{microseconds} 100000"}))
    assert usable_cpus(root, EIGHT).count == count


def test_v2_quota_is_the_least_of_all_parent_groups(tmp_path: Path) -> None:
    quotas = {
        "pods": "600000 100000",
        "pods/one": "300000 100000",
        "pods/one/job": "max 100000",
        "other": "100000 100000",
    }
    root = write_tree(tmp_path, cgroup_v2("/pods/one/job", quotas))
    assert usable_cpus(root, EIGHT).quota == 3.0


def test_v1_quota_is_the_least_of_all_parent_groups(tmp_path: Path) -> None:
    quotas = {".": (-1, 100_000), "docker": (500_000, 100_000), "docker/a1": (100_000, 50_000)}
    root = write_tree(tmp_path, cgroup_v1("/docker/a1", quotas))
    assert usable_cpus(root, EIGHT).quota == 2.0


def test_container_sees_only_its_part_of_the_hierarchy(tmp_path: Path) -> None:
    # Docker with v1 mounts the container's own group as the root of the visible hierarchy.
    v1 = cgroup_v1("/docker/a1", {".": (150_000, 100_000)}, shown="/docker/a1")
    assert usable_cpus(write_tree(tmp_path / "v1", v1), EIGHT).quota == 1.5
    # A process moved in from outside the namespace sees its group as a path above the mount.
    v2 = cgroup_v2("/../other", {".": "200000 100000"})
    assert usable_cpus(write_tree(tmp_path / "v2", v2), EIGHT).quota == 2.0


def test_a_container_s_quota_is_found_from_the_host(tmp_path: Path) -> None:
    tree = cgroup_v2("/user.slice", {"docker/a1": "200000 100000", "user.slice": "max 100000"})
    tree |= {
        "proc/71/cgroup": "0::/docker/a1",
        "proc/71/mountinfo": "30 23 0:26 /docker/a1 /elsewhere rw - cgroup2 cgroup2 rw",
    }
    root = write_tree(tmp_path, tree)
    assert usable_cpus(root, EIGHT, "71").quota == 2.0
    assert usable_cpus(root, EIGHT).quota is None


@pytest.mark.parametrize("path", ["/../host", "/docker/b2"])
def test_another_container_s_quota_is_not_that_of_this_one(tmp_path: Path, path: str) -> None:
    tree = cgroup_v2("/docker/a1", {".": "200000 100000"}, shown="/docker/a1")
    root = write_tree(tmp_path, tree | {"proc/71/cgroup": f"0::{path}"})
    assert usable_cpus(root, EIGHT).quota == 2.0
    assert usable_cpus(root, EIGHT, "71").quota is None


def test_v1_and_v2_quotas_together_give_the_lesser(tmp_path: Path) -> None:
    one, two = cgroup_v1("/a", {"a": (300_000, 100_000)}), cgroup_v2("/b", {"b": "200000 100000"})
    both = one | two
    for name in ("proc/self/cgroup", "proc/self/mountinfo"):
        both[name] = f"{one[name]}\n{two[name]}"
    assert usable_cpus(write_tree(tmp_path, both), EIGHT).quota == 2.0


def test_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": r"30 23 0:26 / /odd\040folder rw - cgroup2 none rw",
        "odd folder/cpu.max": "100000 100000",
    }
    assert usable_cpus(write_tree(tmp_path, tree), EIGHT).quota == 1.0
