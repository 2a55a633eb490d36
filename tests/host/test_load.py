"""`feeder.host.load`: the kernel's counters of a machine's load."""

import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from feeder.host.load import read_load
from feeder.host.memory_bandwidth import measure_copy_bandwidth
from feeder.host.topology import UsableCpus
from feeder.metrics.report import HostLoad
from tests.support.machine_tree import cgroup_v1, cgroup_v2, write_tree

TICKS = os.sysconf("SC_CLK_TCK")
STAT = f"""\
cpu  999 9 99 9999 99 9 9 9 9 9
cpu0 {10 * TICKS} {TICKS} {2 * TICKS} {100 * TICKS} {4 * TICKS} 0 {TICKS} {TICKS} 7 7
cpu1 {20 * TICKS} 0 0 {90 * TICKS} {6 * TICKS} 0 0 0 0 0
cpu11 {500 * TICKS} 0 0 0 {500 * TICKS} 0 0 0 0 0
intr 12345 0 9
ctxt 1
"""
PRESSURE = """\
some avg10=1.50 avg60=0.86 avg300=0.51 total={some}
full avg10=0.00 avg60=0.00 avg300=0.00 total=999999999
"""
USABLE = UsableCpus(affinity=frozenset({0, 1}), quota=None, count=2, reason="")


def read(root: Path, usable: UsableCpus = USABLE) -> HostLoad:
    found = read_load(root, usable)
    assert found.free_memory_bytes > 0
    return msgspec.structs.replace(found, clock_s=12.5, free_memory_bytes=1 << 30)


def test_a_machine_s_load_is_that_of_the_daemon_s_cpus(tmp_path: Path) -> None:
    files = {
        "proc/stat": STAT,
        "proc/pressure/cpu": PRESSURE.format(some=1_500_000),
        "proc/pressure/io": PRESSURE.format(some=2_500_000),
        "proc/pressure/memory": PRESSURE.format(some=3_500_000),
        "proc/vmstat": "nr_free_pages 5\nworkingset_refault_anon 8\nworkingset_refault_file 77",
    }
    assert read(write_tree(tmp_path, files)) == HostLoad(
        clock_s=12.5,
        usable_cpus=2.0,
        cpus=2,
        busy_s=35.0,
        io_wait_s=10.0,
        pressure_cpu_s=1.5,
        pressure_io_s=2.5,
        pressure_memory_s=3.5,
        refaults=77,
        free_memory_bytes=1 << 30,
    )


def test_the_throttled_time_is_that_of_the_group_which_was_stopped_longest(tmp_path: Path) -> None:
    files = cgroup_v2("/a/b", {}) | {
        "sys/fs/cgroup/cpu.stat": "usage_usec 5",
        "sys/fs/cgroup/a/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000",
        "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 5\nnr_throttled 1\nthrottled_usec 500000",
    }
    assert read(write_tree(tmp_path, files)).throttled_s == 2.5


# The probe of memory bandwidth


def test_cgroup_v1_counts_throttled_nanoseconds(tmp_path: Path) -> None:
    files = cgroup_v1("/pod", {"pod": (100_000, 100_000)})
    files["sys/fs/cgroup/cpu,cpuacct/pod/cpu.stat"] = "nr_throttled 1\nthrottled_time 1500000000"
    assert read(write_tree(tmp_path, files)).throttled_s == 1.5


PLENTY = 1 << 40


def test_a_copy_is_measured_and_leaves_no_thread() -> None:
    before = threading.active_count()
    bandwidth = measure_copy_bandwidth(2, PLENTY)
    assert 1e7 < bandwidth < 1e13
    assert threading.active_count() == before


def test_short_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "full", None)
    assert measure_copy_bandwidth(2, 64 << 20) == 0.0
