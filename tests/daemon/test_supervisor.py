"""The supervisor's plans and reports; tests/faults tests it with the real daemon."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.daemon.config import Config, load_config
from feeder.daemon.node_plan import plan_nodes
from feeder.daemon.start_report import describe_datasets
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from feeder.host.placement import NodePlacement
from feeder.process.stop_signals import SignalWakeup
from feeder.worker.messages import DatasetSource
from tests.support.daemon import SAMPLES, wait_until
from tests.support.machine_tree import cgroup_v2, write_tree

FILES = 65536
"""Limit of open files."""


def _config(**overrides: object) -> Config:
    return load_config(None, {"data": {"d": "/data/d"}, **overrides})


def _placement(node: int, workers: int) -> NodePlacement:
    cpus = frozenset({2 * node, 2 * node + 1})
    return NodePlacement(node_id=node, cpus=cpus, memory_node=node, workers=workers)


def test_each_node_process_gets_its_endpoint_workers_and_memory() -> None:
    binds = ("tcp://127.0.0.1:6000", "ipc:///run/f")
    config = _config(**{"serve.bind": binds, "serve.slots_bytes": 1 << 30})
    first, second = plan_nodes(config, {"d": "abc"}, [_placement(0, 3), _placement(1, 2)], FILES)
    assert first.endpoints == binds
    assert second.endpoints == ("tcp://127.0.0.1:6001", "ipc:///run/f.1")
    assert (first.workers, second.workers) == (3, 2)
    assert first.limits.slots_bytes == second.limits.slots_bytes == 1 << 30
    assert (first.name.split("/")[-1], second.name.split("/")[-1]) == ("0", "1")
    assert first.worker.datasets == {"d": DatasetSource(folder=b"/data/d", fingerprint="abc")}


def test_automatic_memory_is_shared_between_node_processes() -> None:
    def is_shared() -> bool:
        one = plan_nodes(_config(), {}, [_placement(0, 1)], FILES)[0].limits.slots_bytes
        two = plan_nodes(_config(), {}, [_placement(0, 1), _placement(1, 1)], FILES)[
            0
        ].limits.slots_bytes
        return two == pytest.approx(one / 2, rel=0.2)

    wait_until(is_shared, "half each, unless other processes take some meanwhile")


def test_the_automatic_cache_is_a_quarter_of_the_memory_left_in_the_cgroup(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    files = {f"{group}/memory.max": "1000000000", f"{group}/memory.current": "200000000"}
    root = write_tree(tmp_path, cgroup_v2("/pod", {}) | files)
    config = _config(**{"serve.topology_root": str(root), "cache.decoded_bytes": "auto"})
    one = plan_nodes(config, {}, [_placement(0, 1)], FILES)[0]
    two = plan_nodes(config, {}, [_placement(0, 1), _placement(1, 1)], FILES)[0]
    assert (one.decoded_bytes, two.decoded_bytes) == (200_000_000, 100_000_000)


def test_a_configured_cache_size_is_per_node_process_and_may_be_zero() -> None:
    for size_bytes in (3 << 30, 0):
        config = _config(**{"cache.decoded_bytes": size_bytes})
        nodes = plan_nodes(config, {}, [_placement(0, 1), _placement(1, 1)], FILES)
        assert [node.decoded_bytes for node in nodes] == [size_bytes] * 2


@pytest.fixture
def wakeup() -> Iterator[SignalWakeup]:
    """The wake-up of SIGUSR1, with one signal pending."""
    former = signal.getsignal(signal.SIGUSR1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.raise_signal(signal.SIGUSR1)
    wakeup = SignalWakeup([signal.SIGUSR1])
    try:
        yield wakeup
    finally:
        os.close(signal.set_wakeup_fd(-1))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGUSR1, former)
        os.close(wakeup._reader)


def test_a_wakeup_notices_signals_once(wakeup: SignalWakeup) -> None:
    assert wakeup.take(), "it was pending"
    assert not wakeup.take()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert wakeup.take()
    assert not wakeup.take()


def test_datasets_are_opened_once_and_described_or_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    original = Dataset.open
    monkeypatch.setattr(
        Dataset, "open", lambda path, **fields: opened.append(path) or original(path, **fields)
    )
    again, small = describe_datasets({"small": packed, "again": packed})
    assert opened == [packed, packed]
    assert again[1].startswith(f"data again: {SAMPLES} samples, 5 shards, 3 classes, ")
    report, line = small
    assert line.startswith("data small: ")
    assert (report.name, report.folder) == ("small", str(packed))
    assert (report.samples, report.classes) == (SAMPLES, 3)
    assert line.endswith(report.content[:12])
    with pytest.raises(ConfigError, match="nothing to serve"):
        describe_datasets({})
    with pytest.raises(DatasetError):
        describe_datasets({"d": tmp_path / "missing"})
