"""The kernel's line about a process."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.host.process_stat import ProcessStat, parse_stat

LINE = b"7 (a) b) %s 3 1 1 0 -1 0 1 2 3 4 150 25 0 0 20 0 3 0 99 1 2"
LATER = b" 0" * 14 + b" 5 0 0"


def test_state_cpu_time_last_cpu_and_parent() -> None:
    cpu_s = 175 / os.sysconf("SC_CLK_TCK")
    assert parse_stat(LINE % b"R" + LATER) == ProcessStat("runs", cpu_s, 5, 3)
    assert parse_stat(LINE % b"R") == ProcessStat("runs", cpu_s, -1, 3)


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        (b"R", "runs"),
        (b"S", "sleeps"),
        (b"I", "sleeps"),
        (b"D", "storage"),
        (b"T", "stopped"),
        (b"t", "traced"),
        (b"Z", "ended"),
        (b"X", "ended"),
    ],
)
def test_states(letter: bytes, state: str) -> None:
    stat = parse_stat(LINE % letter)
    assert stat is not None
    assert stat.state == state


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    parse_stat(data)
    parse_stat(LINE % b"R" + data)
    stat = parse_stat(b"7 (a) " + data)
    assert stat is None or (stat.cpu_s >= 0 and stat.last_cpu >= -1)
