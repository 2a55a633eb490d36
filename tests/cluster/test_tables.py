"""What each host binds, and a cluster's state as lines."""

from typing import Any

import pytest

from feeder.cluster.policy.plan import Launch
from feeder.cluster.settings import Request, binds_on, check_binds, serve_options
from feeder.cluster.show import describe_shortfall, format_status
from feeder.errors import ConfigError

REAL = ["10.0.0.1", "10.0.0.2"]
SIMULATED = ["127.0.0.21", "127.0.0.22"]


@pytest.mark.parametrize(
    ("bind", "address", "bound"),
    [
        ("tcp://*:5555", "10.0.0.2", "tcp://10.0.0.2:5555"),
        ("tcp://[::]:5555", "fd00::2", "tcp://[fd00::2]:5555"),
        ("tcp://127.0.0.1:5555", "127.0.0.22", "tcp://127.0.0.22:5555"),
        ("tcp://127.0.0.1:5555", "10.0.0.2", "tcp://127.0.0.1:5555"),
        ("ipc:///run/node", "10.0.0.2", "ipc:///run/node"),
    ],
)
def test_a_bind_becomes_the_hosts_own(bind: str, address: str, bound: str) -> None:
    """And a replacement has the name of its slot, whatever its launch."""
    assert binds_on([bind], address) == [bound]
    request = Request(
        do="up",
        address="",
        namespace="",
        timeout_s=30,
        binds=(bind, bind),
        is_insecure=bind.endswith("*:5555"),
    )
    options = serve_options(request, Launch(77, 8, "id", address))
    insecure = ["--insecure"] * request.is_insecure
    assert options == ["--name", "feeder-8", "--bind", bound, *insecure]


@pytest.mark.parametrize(
    ("binds", "addresses", "words"),
    [
        (["tcp://*:5555"], REAL, []),
        (["tcp://127.0.0.1:5555"], SIMULATED, []),
        (["tcp://10.0.0.1:5555"], REAL[:1], []),
        (["tcp://127.0.0.1:5555"], REAL[:1], ["loopback: other hosts cannot", "secret_key"]),
        (["tcp://*:5555", "tcp://127.0.0.1:5556"], REAL, ["127.0.0.1:5556", "loopback"]),
        (["tcp://10.0.0.1:5555"], REAL, ["address of one host", "tcp://*:PORT"]),
        (["ipc:///run/node"], REAL, ["its own host", "tcp://*:PORT"]),
    ],
)
def test_binds_that_other_hosts_cannot_reach_are_refused(
    binds: list[str], addresses: list[str], words: list[str]
) -> None:
    if not words:
        check_binds(binds, addresses)
        return
    with pytest.raises(ConfigError) as caught:
        check_binds(binds, addresses)
    assert all(word in str(caught.value) for word in words), caught.value


PROBLEM = {"address": "10.0.0.2", "failures": 3, "retry_s": 1.25, "reason": "dataset d is missing"}
STATUS: dict[str, Any] = {
    "ready": 1,
    "wanted": 3,
    "hosts": 2,
    "resource": "feeder",
    "slots": [
        {
            "slot": 0,
            "address": "10.0.0.1",
            "state": "ready",
            "seconds": 300.0,
            "endpoints": ["tcp://10.0.0.1:5555", "ipc:///run/node"],
        }
    ],
    "problems": [PROBLEM],
    "notes": ["3 feeders are wanted and 2 hosts offer the resource"],
    "list_problem": "",
    "silent_s": 0.1,
    "lookup": "feeder://10.0.0.9:5554",
    "endpoints_file": "",
}


def test_the_status_has_feeders_problems_and_where_endpoints_are() -> None:
    assert format_status(STATUS) == [
        "1 of 3 feeders serve; 2 hosts offer the resource 'feeder'",
        "  feeder-0  10.0.0.1  ready 5 min  tcp://10.0.0.1:5555, ipc:///run/node",
        "  10.0.0.2: 3 failures, next attempt in 1.2 s: dataset d is missing",
        "  3 feeders are wanted and 2 hosts offer the resource",
        "endpoints: feeder://10.0.0.9:5554",
    ]
    lines = format_status({**STATUS, "silent_s": 61.0, "list_problem": "/f cannot be written"})
    assert "  the controller has waited 1 min 1 s for Ray's head" in lines
    assert "  /f cannot be written" in lines
    empty = {**STATUS, "slots": [], "problems": [], "notes": [], "lookup": "", "hosts": 1}
    assert format_status(empty) == ["1 of 3 feeders serve; 1 host offers the resource 'feeder'"]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"problems": [{**PROBLEM, "address": "h", "failures": 1}, PROBLEM], "is_stuck": True},
            "1 of 2 feeders serve: 10.0.0.2 cannot serve: dataset d is missing "
            "(1 more host in `feeder cluster status`)",
        ),
        (
            {"problems": [], "is_late": True},
            "1 of 2 feeders serve after 30 s: 10.0.0.1 ready; see `feeder cluster status`",
        ),
    ],
)
def test_a_shortfall_names_the_host_that_failed_most(more: dict[str, Any], line: str) -> None:
    assert describe_shortfall({**STATUS, **more}, 30.0) == line
