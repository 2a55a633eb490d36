"""What each host binds."""

import pytest

from feeder.cluster.binds import binds_on, check_binds
from feeder.errors import ConfigError

REAL = ["10.0.0.1", "10.0.0.2"]
SIMULATED = ["127.0.0.21", "127.0.0.22"]


@pytest.mark.parametrize(
    ("bind", "address", "bound"),
    [
        ("tcp://*:5555", "10.0.0.2", "tcp://10.0.0.2:5555"),
        ("tcp://0.0.0.0:5555", "10.0.0.2", "tcp://10.0.0.2:5555"),
        ("tcp://[::]:5555", "fd00::2", "tcp://[fd00::2]:5555"),
        ("tcp://127.0.0.1:5555", "127.0.0.22", "tcp://127.0.0.22:5555"),
        ("tcp://127.0.0.1:5555", "10.0.0.2", "tcp://127.0.0.1:5555"),
        ("ipc:///run/node", "10.0.0.2", "ipc:///run/node"),
    ],
)
def test_a_bind_becomes_the_hosts_own(bind: str, address: str, bound: str) -> None:
    assert binds_on([bind], address) == (bound,)


@pytest.mark.parametrize(
    ("binds", "addresses"),
    [
        (["tcp://*:5555"], REAL),
        (["ipc:///run/node", "tcp://*:5555"], REAL),
        (["tcp://127.0.0.1:5555"], SIMULATED),
        (["tcp://10.0.0.1:5555"], REAL[:1]),
    ],
)
def test_binds_that_clients_can_reach_are_accepted(binds: list[str], addresses: list[str]) -> None:
    check_binds(binds, addresses)


@pytest.mark.parametrize(
    ("binds", "words"),
    [
        (["tcp://127.0.0.1:5555"], ["loopback", "tcp://*:PORT", "secret_key"]),
        (["tcp://*:5555", "tcp://127.0.0.1:5556"], ["127.0.0.1:5556", "loopback"]),
        (["tcp://10.0.0.1:5555"], ["address of one host", "tcp://*:PORT"]),
        (["ipc:///run/node"], ["its own host", "tcp://*:PORT"]),
    ],
)
def test_binds_that_other_hosts_cannot_reach_are_refused(
    binds: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_binds(binds, REAL)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_loopback_bind_is_refused_for_one_host_too_as_others_may_join() -> None:
    with pytest.raises(ConfigError, match="loopback: other hosts cannot reach it"):
        check_binds(["tcp://127.0.0.1:5555"], REAL[:1])
