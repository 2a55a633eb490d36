"""`feeder.host.topology` on machines of every kind."""

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, ResourceError
from feeder.host.kernel_files import Mount, parse_mounts
from feeder.host.topology import format_cpulist, parse_cpulist, read_topology, usable_cpus
from tests.support.machine_tree import cgroup_v1, cgroup_v2, node, write_tree

EIGHT = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        (" 0 , 2-2 ", {0, 2}),
    ],
)
def test_cpulist_syntax(text: str, cpus: set[int]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "65536", "٣"])
def test_malformed_cpulist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a CPU or a range of CPUs"):
        parse_cpulist(text)


@given(st.frozensets(st.integers(0, 300)))
def test_cpulist_survives_a_round_trip(cpus: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus)) == cpus


@pytest.mark.parametrize(
    ("tree", "nodes"),
    [
        (
            node(16, "8-9", 1024) | node(8, "4-5", 1024) | node(0, "0-1", 1024),
            [(0, {0, 1}, 0), (8, {4, 5}, 8), (16, {8, 9}, 16)],
        ),
        (node(0, "0-1", 1024) | node(1, "", 4096), [(0, {0, 1}, 0), (1, set(), 1)]),
        (
            node(0, "0-3", 9) | node(1, "4-7", 9) | {"sys/devices/system/cpu/online": "0-4,6"},
            [(0, {0, 1, 2, 3}, 0), (1, {4, 6}, 1)],
        ),
        (
            node(0, "0-1", 1024, "10 31 21 31")
            | node(1, "2-3", 1024, "31 10 31 21")
            | node(2, "4-5", 0, "21 31 10 31")
            | node(7, "6-7", 0, "31 21 31 10"),
            [(0, {0, 1}, 0), (1, {2, 3}, 1), (2, {4, 5}, 0), (7, {6, 7}, 1)],
        ),
    ],
    ids=["holes in the numbers", "memory only", "offline CPUs", "nearest memory"],
)
def test_nodes_have_cpus_and_memory(
    tmp_path: Path, tree: dict[str, str], nodes: list[tuple[int, set[int], int]]
) -> None:
    found = read_topology(write_tree(tmp_path, tree))
    assert [(each.id, each.cpus, each.memory_node) for each in found] == nodes


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


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("proc/self/cgroup", b"no colons"),
        ("sys/fs/cgroup/cpu.max", b"many 100000"),
        ("sys/fs/cgroup/cpu.max", b"100000 0"),
    ],
)
def test_malformed_quota_file_is_named(tmp_path: Path, file: str, text: bytes) -> None:
    write_tree(tmp_path, cgroup_v2("/", {".": "max 1"}))
    (tmp_path / file).write_bytes(text)
    with pytest.raises(ResourceError, match=f"{file} cannot be parsed: "):
        usable_cpus(tmp_path, EIGHT)


V1, V2 = cgroup_v1("/a", {"a": (300_000, 100_000)}), cgroup_v2("/b", {"b": "200000 100000"})


@pytest.mark.parametrize(("file", "text"), [("cpulist", b"0-3\xff"), ("distance", b"ten 21")])
def test_malformed_node_file_is_named(tmp_path: Path, file: str, text: bytes) -> None:
    write_tree(tmp_path, node(0, "0-3", 0, "10 21") | node(1, "4-7", 1 << 20))
    (tmp_path / "sys/devices/system/node/node0" / file).write_bytes(text)
    with pytest.raises(ResourceError, match=f"node0/{file} cannot be parsed: "):
        read_topology(tmp_path)


ODD_MOUNTS = "31 23 0:26 / /sys\\000 rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("tree", "quota", "count"),
    [
        ({}, None, 8),
        (cgroup_v2("/", {".": "400000 100000"}), 4.0, 4),
        # Part of a CPU rounds down, but never to none.
        (cgroup_v2("/", {".": "50000 100000"}), 0.5, 1),
        (cgroup_v2("/", {".": "9900000 100000"}), 99.0, 8),
        # The least of all parent groups.
        (
            cgroup_v2(
                "/pods/one/job",
                {
                    "pods": "600000 100000",
                    "pods/one": "300000 100000",
                    "pods/one/job": "max 100000",
                    "other": "100000 100000",
                },
            ),
            3.0,
            3,
        ),
        (
            cgroup_v1(
                "/docker/a1",
                {".": (-1, 100_000), "docker": (500_000, 100_000), "docker/a1": (100_000, 50_000)},
            ),
            2.0,
            2,
        ),
        # Docker with v1 mounts the container's own group as the root of the visible hierarchy.
        (cgroup_v1("/docker/a1", {".": (150_000, 100_000)}, shown="/docker/a1"), 1.5, 1),
        # A process moved in from outside the namespace sees its group as a path above the mount.
        (cgroup_v2("/../other", {".": "200000 100000"}), 2.0, 2),
        # The lesser of v1 and v2.
        (
            {name: "\n".join(tree[name] for tree in (V1, V2) if name in tree) for name in V1 | V2},
            2.0,
            2,
        ),
        (
            {
                "proc/self/cgroup": "0::/",
                "proc/self/mountinfo": r"30 23 0:26 / /odd\040folder rw - cgroup2 none rw"
                f"\n{ODD_MOUNTS}",
                "odd folder/cpu.max": "100000 100000",
            },
            1.0,
            1,
        ),
    ],
)
def test_usable_cpus_are_the_affinity_or_the_least_quota(
    tmp_path: Path, tree: dict[str, str], quota: float | None, count: int
) -> None:
    usable = usable_cpus(write_tree(tmp_path, tree), EIGHT)
    assert (usable.quota, usable.count) == (quota, count)
    if quota is None:
        assert usable.reason == "8 = affinity 8, no cgroup quota"
    else:
        assert usable.reason == f"{count} = min(affinity 8, cgroup quota {quota})"


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


# Tables of mounts


def test_all_fields_are_read_and_unescaped() -> None:
    table = "36 35 0:29 /docker/a\\0401 /sys/fs/cgroup/cpu rw a:9 b:2 - cgroup none rw,cpu"
    assert [*parse_mounts(table)] == [
        Mount(
            root="/docker/a 1",
            point=PurePosixPath("/sys/fs/cgroup/cpu"),
            kind="cgroup",
            source="none",
            options=("rw", "cpu"),
        )
    ]
