"""A cluster's state as lines."""

from typing import Any

from feeder.cluster.show import describe_shortfall, format_status

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
    "problems": [
        {"address": "10.0.0.2", "failures": 3, "retry_s": 1.25, "reason": "dataset d is missing"}
    ],
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


def test_a_shortfall_names_the_host_that_failed_most() -> None:
    other = {"address": "10.0.0.3", "failures": 1, "retry_s": 0.0, "reason": "other"}
    stuck = {**STATUS, "problems": [other, *STATUS["problems"]], "is_stuck": True}
    assert describe_shortfall(stuck, 30.0) == (
        "1 of 2 feeders serve: 10.0.0.2 cannot serve: dataset d is missing "
        "(1 more host in `feeder cluster status`)"
    )


def test_a_shortfall_without_a_failure_says_what_is_under_way() -> None:
    late = {**STATUS, "problems": [], "is_late": True}
    assert describe_shortfall(late, 30.0) == (
        "1 of 2 feeders serve after 30 s: 10.0.0.1 ready; see `feeder cluster status`"
    )


def test_problems_with_the_head_and_the_file_are_shown() -> None:
    lines = format_status({**STATUS, "silent_s": 61.0, "list_problem": "/f cannot be written"})
    assert "  the controller has waited 61 s for Ray's head" in lines
    assert "  /f cannot be written" in lines
