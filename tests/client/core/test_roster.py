"""Which endpoints a client keeps links to."""

import pytest

from feeder.client.core.feeders import Roster, find_siblings
from tests.support.client_shell import welcome


def find(dialled: str, number: int, *siblings: tuple[str, ...]) -> tuple[str, ...]:
    return find_siblings(dialled, welcome(number=number, siblings=siblings))


def test_siblings_are_reached_at_the_host_that_was_dialled() -> None:
    bound = ("tcp://0.0.0.0:5555",), ("tcp://0.0.0.0:5556",), ("tcp://0.0.0.0:5557",)
    assert find("tcp://feeder-3:5556", 1, *bound) == ("tcp://feeder-3:5555", "tcp://feeder-3:5557")


def test_siblings_are_reached_in_the_folder_that_was_dialled() -> None:
    bound = ("ipc:///run/feeder/n",), ("ipc:///run/feeder/n.1",)
    assert find("ipc:///run/feeder/n", 0, *bound) == ("ipc:///run/feeder/n.1",)
    assert find("ipc:///mnt/host/n.1", 1, *bound) == ("ipc:///mnt/host/n",), "in a container"


@pytest.mark.parametrize(
    "dialled", ["tcp://balancer:80", "tcp://feeder-3:15555", "ipc:///run/other", "ipc:///run/5555"]
)
def test_no_siblings_are_known_if_another_name_or_port_was_dialled(dialled: str) -> None:
    assert find(dialled, 0, ("tcp://0.0.0.0:5555",), ("tcp://0.0.0.0:5556",)) == ()


def test_siblings_are_reached_by_the_bind_that_was_dialled() -> None:
    bound = (
        ("ipc:///run/n", "tcp://10.0.0.1:5555", "tcp://10.1.0.1:6000"),
        ("ipc:///run/n.1", "tcp://10.0.0.1:5556", "tcp://10.1.0.1:6001"),
    )
    assert find("ipc:///run/n", 0, *bound) == ("ipc:///run/n.1",)
    assert find("tcp://10.0.0.1:5555", 0, *bound) == ("tcp://10.0.0.1:5556",)
    assert find("tcp://second:6001", 1, *bound) == ("tcp://second:6000",)


def test_siblings_are_reached_by_ipv6() -> None:
    bound = ("tcp://[::]:5555",), ("tcp://[::]:5556",)
    assert find("tcp://[fd00::7]:5555", 0, *bound) == ("tcp://[fd00::7]:5556",)
    assert find("tcp://feeder-3:5555", 0, *bound) == ("tcp://feeder-3:5556",)


@pytest.mark.parametrize(("number", "siblings"), [(0, ()), (3, (("tcp://h:1",), ("tcp://h:2",)))])
def test_a_node_that_is_not_among_its_siblings_has_none(
    number: int, siblings: tuple[tuple[str, ...], ...]
) -> None:
    assert find("tcp://h:1", number, *siblings) == ()


def test_a_sibling_that_is_not_bound_the_same_way_is_left_out() -> None:
    bound = ("ipc:///run/n", "tcp://h:5555"), ("ipc:///run/n.1",)
    assert find("tcp://h:5555", 0, *bound) == ()


def test_a_sibling_that_is_bound_by_another_transport_is_left_out() -> None:
    assert find("tcp://h:5555", 0, ("tcp://h:5555",), ("ipc:///run/n.1",)) == ()


# The roster


SIBLINGS = ("tcp://0.0.0.0:1",), ("tcp://0.0.0.0:2",), ("tcp://0.0.0.0:3",)


def make_roster(*listed: str) -> Roster:
    roster = Roster()
    roster.set_listed(listed, {})
    return roster


def report(roster: Roster, endpoint: str, number: int = 0, siblings: object = SIBLINGS) -> None:
    roster.record_siblings(endpoint, welcome(number=number, siblings=siblings))


def test_listed_endpoints_come_first_and_each_is_there_once() -> None:
    roster = make_roster("tcp://b:1", "tcp://a:2")
    assert tuple(roster.endpoints) == ("tcp://b:1", "tcp://a:2")
    report(roster, "tcp://a:2", 1)
    assert tuple(roster.endpoints) == ("tcp://b:1", "tcp://a:2", "tcp://a:1", "tcp://a:3")
    roster.set_listed(["tcp://a:3", "tcp://a:2"], {})
    assert tuple(roster.endpoints) == ("tcp://a:3", "tcp://a:2", "tcp://a:1")


def test_siblings_count_as_long_as_the_reporting_endpoint_is_listed() -> None:
    roster = make_roster("tcp://a:1")
    report(roster, "tcp://a:1")
    roster.set_listed(["tcp://b:1"], {})
    assert tuple(roster.endpoints) == ("tcp://b:1",)


def test_siblings_that_siblings_report_are_ignored() -> None:
    roster = make_roster("tcp://a:1")
    report(roster, "tcp://a:1")
    report(roster, "tcp://a:2", 0, (("tcp://a:2",), ("tcp://a:9",)))
    assert tuple(roster.endpoints) == ("tcp://a:1", "tcp://a:2", "tcp://a:3")


def test_a_later_report_replaces_the_former_one() -> None:
    roster = make_roster("tcp://a:1")
    report(roster, "tcp://a:1")
    report(roster, "tcp://a:1", 0, SIBLINGS[:2])
    assert tuple(roster.endpoints) == ("tcp://a:1", "tcp://a:2")


def test_a_feeder_is_a_line_of_the_list_with_the_siblings_that_it_reports() -> None:
    roster = Roster()
    roster.set_listed(["tcp://a:1", "tcp://b:1"], {"tcp://a:1": "rack-1"})
    report(roster, "tcp://a:1")
    assert roster.feeders == ("rack-1", "tcp://b:1")
    assert roster.endpoints == {
        "tcp://a:1": "rack-1",
        "tcp://b:1": "tcp://b:1",
        "tcp://a:2": "rack-1",
        "tcp://a:3": "rack-1",
    }
