"""The report of the start: one fact a line, narrow, warnings marked, "ready" last."""

from logging import INFO, WARNING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.daemon.config import Config, load_config
from feeder.daemon.start_report import (
    WIDTH,
    compose_report,
    describe_cache,
    describe_ready,
    describe_security,
    wrap_list,
)
from feeder.node.messages import NodeReady


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


@given(st.lists(st.text("abc", min_size=1, max_size=90), max_size=9))
def test_a_wrapped_list_keeps_its_items_in_lines_that_fit(items: list[str]) -> None:
    lines = list(wrap_list("head: ", items))
    assert [item for line in lines for item in line.removeprefix("head: ").split(", ")] == items
    assert all(len(f"feeder: {line}") <= WIDTH or ", " not in line for line in lines)


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
    ],
    ids=["loopback", "ipc", "keys"],
)
def test_a_line_names_the_clients_that_may_connect(
    overrides: dict[str, object], text: str, priority: int
) -> None:
    assert describe_security(config(**overrides)) == (text, priority)


def test_open_tcp_is_a_warning() -> None:
    exposed = load_config(None, {"serve.bind": ("tcp://0.0.0.0:5555",)}, is_insecure=True)
    text = "--insecure: anyone who can reach tcp://0.0.0.0:5555 can connect"
    assert describe_security(exposed) == (text, WARNING)


@pytest.mark.parametrize(
    ("setting", "size_bytes", "text"),
    [
        (3 << 30, 3 << 30, "3.22 GB a node process (decoded_bytes: command line)"),
        (0, 0, "off (cache.decoded_bytes: command line)"),
        ("auto", 1_200_000_000_000, "1200.00 GB a node process (auto: command line)"),
    ],
)
def test_the_cache_is_shown_with_the_origin_of_its_size(
    setting: object, size_bytes: int, text: str
) -> None:
    shown = describe_cache(config(**{"cache.decoded_bytes": setting}), size_bytes)
    assert shown == f"decoded cache: {text}"
    assert len(f"feeder: {shown}") <= WIDTH


def test_the_last_line_is_short() -> None:
    one = node(6000, worker_pids=(1,))
    assert describe_ready([one], ["d"]) == "ready, 1 worker serves d at tcp://127.0.0.1:6000"
    assert describe_ready([node(6000), node(6002)], ["a", "b"]) == (
        "ready, 4 workers serve 2 datasets at tcp://127.0.0.1:6000 and 1 more"
    )
