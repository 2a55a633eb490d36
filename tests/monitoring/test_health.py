"""Which states of a daemon are unhealthy, and which only not ready."""

import pytest

from feeder.daemon.node_process import HEARTBEATS, START_DEADLINE_S
from feeder.metrics.report import HostReport
from feeder.monitoring.server import REPORT_MAX_S, STATES_MAX_S, find_trouble
from feeder.process.backoff import BACKOFF_MAX_S
from tests.monitoring.reports import host_report, node_in

NOW_S = 1000.0
START_MAX_S = STATES_MAX_S["restarting"]
SILENT_MAX_S = STATES_MAX_S["hung"]


def health(*states: tuple[str, float]) -> HostReport:
    """Return that of node processes, each in a state since some seconds ago."""
    nodes = [node_in(state, number, NOW_S - age_s) for number, (state, age_s) in enumerate(states)]
    return host_report(*nodes, at_s=NOW_S)


@pytest.mark.parametrize(
    ("state", "age_s", "unhealthy", "not_ready"),
    [
        ("ready", 9000.0, "", ""),
        ("starting", START_DEADLINE_S, "", "node process 0 is starting"),
        ("restarting", START_DEADLINE_S + BACKOFF_MAX_S, "", "node process 0 is restarting"),
        (
            "restarting",
            START_MAX_S + 1,
            "node process 0 has been restarting for 151 s",
            "node process 0 is restarting",
        ),
        ("hung", HEARTBEATS.most_s, "", "node process 0 is hung"),
        ("silent", HEARTBEATS.most_s, "", "node process 0 is silent"),
        ("silent", SILENT_MAX_S + 1, "node process 0 has been silent for 46 s", "…silent"),
        ("hung", SILENT_MAX_S + 1, "node process 0 has been hung for 46 s", "…hung"),
        ("draining", 1.0, "", "draining"),
    ],
)
def test_health_by_a_node_process_s_state(
    state: str, age_s: float, unhealthy: str, not_ready: str
) -> None:
    found = health((state, age_s))
    assert find_trouble(found, NOW_S, must_serve=False) == unhealthy
    assert find_trouble(found, NOW_S, must_serve=True) == not_ready.replace(
        "…", "node process 0 is "
    )


def test_a_node_process_that_is_replaced_makes_no_probe_kill_the_others() -> None:
    """The supervisor ends a silent one after 30 s at most, and gives its successor 120 s."""
    for state, age_s in (("hung", 5.0), ("restarting", 60.0)):
        found = health(("ready", 9000.0), (state, age_s))
        assert find_trouble(found, NOW_S, must_serve=False) == ""
        assert find_trouble(found, NOW_S, must_serve=True) == f"node process 1 is {state}"


def test_the_limits_leave_the_supervisor_its_deadlines_with_a_margin() -> None:
    assert HEARTBEATS.most_s + 10 <= SILENT_MAX_S
    assert START_MAX_S >= START_DEADLINE_S + BACKOFF_MAX_S + 10


def test_a_supervisor_that_stands_still_is_neither_healthy_nor_ready() -> None:
    found, late = health(("ready", 1.0)), "the supervisor has made no report for 6 s"
    for must_serve in (False, True):
        assert find_trouble(found, NOW_S + REPORT_MAX_S + 1, must_serve=must_serve) == late
