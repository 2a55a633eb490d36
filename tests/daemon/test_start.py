"""The start: what each node process gets, and the report of it, one fact a line, "ready" last."""

from logging import INFO, WARNING
from pathlib import Path

import pytest

from feeder.daemon.config import Config, load_config
from feeder.daemon.node_plan import plan_nodes
from feeder.daemon.start_report import (
    WIDTH,
    compose_report,
    describe_cache,
    describe_security,
)
from feeder.host.placement import NodePlacement
from feeder.node.messages import NodeReady
from feeder.worker.messages import DatasetSource
from tests.support.machine_tree import cgroup_v2, write_tree


def config(**overrides: object) -> Config:
    return load_config(None, {"data": {"d": "/data/d"}, **overrides})


def node(port: int, **overrides: object) -> NodeReady:
    fields: dict[str, object] = {
        "endpoints": (f"tcp://127.0.0.1:{port}",),
        "worker_pids": (port, port + 1),
        "libraries": {"feeder": "0.1.0", "numpy": "2.4"},
        "self_test": "5" * 32,
        "decoder": "own (avx2)",
        "warnings": (),
        **overrides,
    }
    return NodeReady(**fields)  # type: ignore[arg-type]


def test_each_fact_is_a_line() -> None:
    lines = list(compose_report(config(), [node(6000), node(6002)], ["data d: 53 samples"], 0))
    assert [text for text, _ in lines] == [
        "endpoints of node process 0: tcp://127.0.0.1:6000",
        "endpoints of node process 1: tcp://127.0.0.1:6002",
        "data d: 53 samples",
        "decoder: own (avx2)",
        "libraries: feeder 0.1.0, numpy 2.4",
        "self-test: 555555555555",
        "decoded cache: off (cache.decoded_bytes: default)",
        "security: plain tcp, for clients of this machine only",
    ]
    assert {priority for _, priority in lines} == {INFO}
    assert all(len(f"feeder: {text}") <= WIDTH for text, _ in lines)


@pytest.mark.parametrize(
    ("overrides", "text", "priority"),
    [
        ({}, "security: plain tcp, for clients of this machine only", INFO),
        (
            {"serve.bind": ("ipc:///run/f",)},
            "security: ipc only, its sockets have mode 0660",
            INFO,
        ),
        (
            {"serve.secret_key": "/k/s", "serve.client_keys": "/k/c"},
            "security: tcp is encrypted, for the keys in /k/c",
            INFO,
        ),
        (
            {"serve.bind": ("tcp://0.0.0.0:5555",)},
            "--insecure: anyone who can reach tcp://0.0.0.0:5555 can connect",
            WARNING,
        ),
    ],
    ids=["loopback", "ipc", "keys", "insecure"],
)
def test_a_line_names_the_clients_that_may_connect(
    overrides: dict[str, object], text: str, priority: int
) -> None:
    exposed = load_config(None, overrides, is_insecure=priority == WARNING)
    assert describe_security(exposed) == (text, priority)


@pytest.mark.parametrize(
    ("setting", "size_bytes", "text"),
    [
        (3 << 30, 3 << 30, "3.22 GB a node process (decoded_bytes: command line)"),
        ("auto", 1_200_000_000_000, "1200.00 GB a node process (auto: command line)"),
    ],
)
def test_the_cache_is_shown_with_the_origin_of_its_size(
    setting: object, size_bytes: int, text: str
) -> None:
    shown = describe_cache(config(**{"cache.decoded_bytes": setting}), size_bytes)
    assert shown == f"decoded cache: {text}"
    assert len(f"feeder: {shown}") <= WIDTH


# --- the plan ---------------------------------------------------------------------------------


def _placement(node: int, workers: int) -> NodePlacement:
    cpus = frozenset({2 * node, 2 * node + 1})
    return NodePlacement(node_id=node, cpus=cpus, memory_node=node, workers=workers)


def test_each_node_process_gets_its_endpoint_workers_and_memory() -> None:
    binds = ("tcp://127.0.0.1:6000", "ipc:///run/f")
    settings = config(**{"serve.bind": binds, "serve.slots_bytes": 1 << 30})
    first, second = plan_nodes(settings, {"d": "abc"}, [_placement(0, 3), _placement(1, 2)], 65536)
    assert first.endpoints == binds
    assert second.endpoints == ("tcp://127.0.0.1:6001", "ipc:///run/f.1")
    assert (first.workers, second.workers) == (3, 2)
    assert first.limits.slots_bytes == second.limits.slots_bytes == 1 << 30
    assert first.limits.client_slots_bytes == 3 << 28, "three quarters of it"
    assert (first.name.split("/")[-1], second.name.split("/")[-1]) == ("0", "1")
    assert first.worker.datasets == {"d": DatasetSource(folder=b"/data/d", fingerprint="abc")}


def test_each_node_process_gets_the_limits_that_are_configured() -> None:
    keys = "window_max chunk_images lease_s recipes_max client_sessions_max client_recipes_max"
    values = {f"serve.{key}": 21 + place for place, key in enumerate(keys.split())}
    weights = {"weights": {"alice": {"big": 3.0}}}
    settings = config(**values, **weights, **{"serve.clients_max": 30, "serve.socket_mode": "0600"})
    (planned,) = plan_nodes(settings, {}, [_placement(0, 1)], 65536)
    assert [getattr(planned.limits, key) for key in keys.split()] == [*values.values()]
    assert planned.limits.sessions_max == 30
    assert (planned.weights, planned.socket_mode) == (weights["weights"], 0o600)


def test_the_automatic_cache_is_a_quarter_of_the_memory_left_in_the_cgroup(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    files = {f"{group}/memory.max": "1000000000", f"{group}/memory.current": "200000000"}
    root = write_tree(tmp_path, cgroup_v2("/pod", {}) | files)
    settings = config(**{"serve.topology_root": str(root), "cache.decoded_bytes": "auto"})
    one = plan_nodes(settings, {}, [_placement(0, 1)], 65536)[0]
    two = plan_nodes(settings, {}, [_placement(0, 1), _placement(1, 1)], 65536)[0]
    assert (one.decoded_bytes, two.decoded_bytes) == (200_000_000, 100_000_000)
    pages = one.worker.page_cache_bytes, two.worker.page_cache_bytes
    assert pages == (440_000_000, 220_000_000), "0.8 of what is left, without the decoded cache"
