"""Planning, applying and checking where processes run and keep their memory."""

import dataclasses
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError, ResourceError
from feeder.host.placement import (
    NodePlacement,
    PlacementCheck,
    apply_placement,
    check_placement,
    count_pages,
    format_table,
    parse_pin,
    plan_placement,
)
from feeder.host.topology import NumaNode, UsableCpus, read_topology, usable_cpus
from tests.support.machine_tree import two_nodes


def machine(*nodes: Sequence[int], memory_bytes: int = 1 << 30) -> list[NumaNode]:
    """A machine on which node i has the i-th CPUs and its own memory."""
    return [
        NumaNode(id=i, cpus=frozenset(cpus), memory_bytes=memory_bytes, memory_node=i)
        for i, cpus in enumerate(nodes)
    ]


def given_cpus(cpus: Sequence[int], count: int | None = None) -> UsableCpus:
    """What a process with these CPUs may use; `count` where a quota allows less."""
    count = len(cpus) if count is None else count
    quota = None if count == len(cpus) else float(count)
    reason = f"{count} = set by the test"
    return UsableCpus(affinity=frozenset(cpus), quota=quota, count=count, reason=reason)


AUTO = parse_pin("auto")
TWO = machine(range(4), range(4, 8))


FOUR, NEXT = frozenset(range(4)), frozenset(range(4, 8))
EIGHT = given_cpus(range(8))


@pytest.mark.parametrize(
    ("nodes", "usable", "count", "pin", "plan"),
    [
        (TWO, EIGHT, None, "auto", [(0, FOUR, 0, 4), (1, NEXT, 1, 4)]),
        (TWO, given_cpus([0, 4, 5, 6]), None, "auto", [(0, {0}, 0, 1), (1, {4, 5, 6}, 1, 3)]),
        (TWO, given_cpus(range(8), count=2), None, "auto", [(0, FOUR, 0, 1), (1, NEXT, 1, 1)]),
        (TWO, EIGHT, 11, "auto", [(0, FOUR, 0, 6), (1, NEXT, 1, 5)]),
        (TWO, EIGHT, 1, "auto", [(0, FOUR, 0, 1)]),
        (machine(range(2), ()), given_cpus(range(2)), None, "auto", [(0, {0, 1}, 0, 2)]),
        (TWO, EIGHT, None, "off", [(0, FOUR | NEXT, None, 8)]),
        (TWO, EIGHT, None, "3-4,6", [(0, {3}, 0, 1), (1, {4, 6}, 1, 2)]),
        (machine([90]), given_cpus([0, 1]), None, "auto", [(0, {0, 1}, None, 2)]),
    ],
    ids=[
        *("a worker for each CPU", "workers go where the usable CPUs are"),
        *("a quota spreads and keeps all CPUs", "more workers than CPUs"),
        *("a node without a worker", "a node of memory only"),
        *("off: one process", "a list", "CPUs on no node that sysfs shows"),
    ],
)
def test_plan(
    nodes: Sequence[NumaNode],
    usable: UsableCpus,
    count: int | None,
    pin: str,
    plan: list[tuple[int, frozenset[int], int | None, int]],
) -> None:
    assert [*plan_placement(nodes, usable, count, parse_pin(pin))] == [
        NodePlacement(
            node_id=node,
            cpus=frozenset(cpus),
            memory_node=memory_node,
            workers=workers,
            pinned=pin != "off",
        )
        for node, cpus, memory_node, workers in plan
    ]


@pytest.mark.parametrize(
    ("count", "pin", "message"),
    [
        (None, "5-7", "asks for CPUs 6-7, but this process may only use 0-5"),
        (0, "auto", "workers is 0"),
        *((None, text, "pin is") for text in ("", "on", "3-1")),
    ],
)
def test_what_cannot_be_planned_is_refused(count: int | None, pin: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_placement(TWO, given_cpus(range(6)), count, parse_pin(pin))


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    total=st.integers(1, 200),
)
def test_workers_are_spread_in_proportion(sizes: list[int], total: int) -> None:
    first = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = [range(start, start + size) for start, size in zip(first, sizes, strict=True)]
    plan = plan_placement(machine(*nodes), given_cpus(range(sum(sizes))), total, AUTO)
    assert sum(node.workers for node in plan) == total
    for node in plan:
        exact = total * sizes[node.node_id] / sum(sizes)
        assert 0 < node.workers < exact + 1
        assert node.workers > exact - 1


def run_here(code: str) -> str:
    """Run code in a new interpreter, because applying a placement changes the process."""
    preamble = "import os, dataclasses; from feeder.host.placement import *; "
    answer = subprocess.run(
        [sys.executable, "-c", preamble + code], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_mask_and_memory_policy_hold_for_the_process_and_its_children() -> None:
    cpu = min(os.sched_getaffinity(0))
    printed = run_here(
        f"warning = apply_placement(NodePlacement(node_id=0, cpus=frozenset({{{cpu}}}), "
        "memory_node=0, workers=1)); print(warning, flush=True); "
        "os.execvp('cat', ['cat', '/proc/self/status', '/proc/self/numa_maps'])"
    )
    warning, *seen = printed.splitlines()
    if warning != "None":
        assert "set_mempolicy failed" in warning
        pytest.skip(f"this container refuses set_mempolicy: {warning}")
    assert f"Cpus_allowed_list:\t{cpu}" in seen
    maps = [line.split()[1] for line in seen if "kernelpagesize_kB" in line]
    assert set(maps) <= {"bind:0"}


def test_pin_off_changes_nothing() -> None:
    plan = NodePlacement(node_id=0, cpus=frozenset({0}), memory_node=0, workers=1, pinned=False)
    before = os.sched_getaffinity(0)
    assert apply_placement(plan) is None
    assert os.sched_getaffinity(0) == before


def test_missing_cpus_are_an_error_that_suggests_pin_off() -> None:
    plan = NodePlacement(node_id=3, cpus=frozenset({1020}), memory_node=None, workers=1)
    with pytest.raises(ResourceError, match=r"refuses to pin node 3 to CPUs 1020 .*--pin off"):
        apply_placement(plan)


def ours(memory_node: int | None = None) -> NodePlacement:
    """A placement that changes nothing: this process's own CPUs."""
    cpus = frozenset(os.sched_getaffinity(0))
    return NodePlacement(node_id=0, cpus=cpus, memory_node=memory_node, workers=1)


@pytest.mark.parametrize(
    ("attribute", "replaced", "node", "message"),
    [
        (None, None, 900, "not bound to node 900: set_mempolicy failed: Invalid argument"),
        ("feeder.host.placement._bind_memory", lambda node: errno.EPERM, 0, "--cap-add SYS_NICE"),
    ],
    ids=["no such node", "in a container"],
)
def test_memory_that_cannot_be_bound_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    attribute: str | None,
    replaced: object,
    node: int,
    message: str,
) -> None:
    if attribute is not None:
        monkeypatch.setattr(attribute, replaced)
    assert message in (apply_placement(ours(memory_node=node)) or "")


NUMA_MAPS = """\
55aa00000000 bind:1 file=/usr/bin/python3.11 mapped=3 N0=3 kernelpagesize_kB=4
55aa00010000 bind:1 file=/usr/bin/python3.11 anon=5 dirty=5 N1=5 kernelpagesize_kB=4
55aa01000000 bind:1 heap anon=100 dirty=100 active=0 N0=1 N1=99 kernelpagesize_kB=4
7f0000000000 bind:1 anon=50 dirty=50 N1=50 kernelpagesize_kB=4
7f0010000000 bind:1 file=/memfd:feeder-slots\\040(deleted) dirty=40 N0=2 N1=38 kernelpagesize_kB=4
7f0020000000 bind:1 file=/dev/shm/x dirty=4 N1=4 kernelpagesize_kB=4
7f0040000000 bind:1 file=/usr/lib/libc.so.6
7ffc00000000 bind:1 stack anon=6 dirty=6 N1=6 kernelpagesize_kB=4
7ffc00100000 default
"""


def test_own_pages_are_counted_and_those_of_files_are_not() -> None:
    assert count_pages(NUMA_MAPS) == {0: 1 + 2, 1: 99 + 50 + 38 + 4 + 6}


def test_check_looks_at_every_thread_of_every_process() -> None:
    placement = dataclasses.replace(ours(), cpus=frozenset([min(os.sched_getaffinity(0))]))
    program = (
        "import os, sys, threading; "
        f"os.sched_setaffinity(0, {{{min(placement.cpus)}}}); "
        "thread = threading.Thread(target=sys.stdin.read); thread.start(); "
        "os.sched_setaffinity(thread.native_id, map(int, sys.argv[1:])); print(flush=True)"
    )

    def check(*cpus: int) -> bool:
        with subprocess.Popen(
            [sys.executable, "-c", program, *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            return check_placement([process.pid], placement).cpus_ok

    everywhere = os.sched_getaffinity(0)
    assert check(*placement.cpus)
    assert check(*everywhere) == (len(everywhere) == 1)
    anywhere = dataclasses.replace(placement, pinned=False)
    assert check_placement([os.getpid()], anywhere).cpus_ok
    assert check_placement([os.getpid()], placement).cpus_ok == (len(everywhere) == 1)


def test_own_pages_elsewhere_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: NUMA_MAPS)
    check = check_placement([os.getpid()], ours(memory_node=1))
    assert (check.pages - check.pages_on_node, check.readable) == (3, True)
    assert check.on_node_share == 197 / 200
    two = check_placement([os.getpid(), os.getpid()], ours(memory_node=1))
    assert (two.pages, two.pages_on_node) == (2 * check.pages, 2 * check.pages_on_node)
    check = check_placement([os.getpid()], ours())
    assert check.pages_on_node == check.pages


def test_missing_numa_maps_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    check = check_placement([os.getpid()], ours(memory_node=0))
    assert not check.readable
    table = format_table([ours(memory_node=0)], given_cpus(range(8)), {0: check})
    assert "not readable" in table[1]


def test_table_shows_placements_and_checks(tmp_path: Path) -> None:
    usable = usable_cpus(tmp_path, frozenset(range(9)))
    plan = plan_placement(read_topology(two_nodes(tmp_path)), usable, None, AUTO)
    good = PlacementCheck(cpus_ok=True, pages=25_600, pages_on_node=25_599, readable=True)
    bad = PlacementCheck(cpus_ok=False, pages=76_800, pages_on_node=51_198, readable=True)
    lines = format_table(plan, usable, {0: good, 1: bad})
    assert lines == [
        "node  workers  CPUs  memory  CPU mask    own pages on the node",
        "0     5        0-3   node 0  as planned  100.0% of 100 MiB",
        "1     4        4-7   node 1  DIFFERS     66.7% of 300 MiB",
        "usable CPUs: 9 = affinity 9, no cgroup quota",
        "unused: CPUs 8",
    ]
