"""What keys do, and when a daemon counts as silent."""

import pytest

from feeder.screens.live import LATE_S, LiveState
from tests.support.host_reports import healthy, no_clients

UP, DOWN, PAGE_DOWN, END = b"\x1b[A", b"\x1b[B", b"\x1b[6~", b"\x1b[F"


@pytest.fixture
def state() -> LiveState:
    state = LiveState(healthy(), "tcp://h:1", interval_s=1.0, now_s=100.0)
    state.scroll_max = 30
    return state


@pytest.mark.parametrize(
    ("keys", "is_done", "offset"),
    [
        *((key, True, 0) for key in (b"q", b"Q", b"\x1b[A\x1b[Bq")),
        *((key, False, 0) for key in (b"", b"x", b"\xff\xfe", b"\x1b", b"\x1b[1;5D", b"\x1b[99~")),
        (b"\0", False, 0),
        (DOWN, False, 1),
        (DOWN * 3 + UP, False, 2),
        (UP, False, 0),
        (PAGE_DOWN, False, 10),
        (PAGE_DOWN * 9, False, 30),
        (END, False, 30),
        (END + b"\x1b[5~", False, 20),
        (END + b"\x1b[H", False, 0),
        (b"\x1bOB", False, 1),
        (b"jjk ", False, 11),
    ],
)
def test_keys_end_and_scroll_within_bounds(
    state: LiveState, keys: bytes, is_done: bool, offset: int
) -> None:
    state.on_keys(keys, 100.0)
    assert (state.is_done, state.is_paused) == (is_done, False)
    assert is_done or state.offset == offset


def test_a_report_that_comes_after_the_pause_has_begun_is_not_shown(state: LiveState) -> None:
    before = state.report
    state.on_keys(b"p", 101.0)
    state.show(no_clients(), 102.0)
    assert state.report is before
    state.on_keys(b"p", 103.0)
    state.show(no_clients(), 104.0)
    assert state.report == no_clients()


def test_a_daemon_is_silent_after_an_interval_and_a_while(state: LiveState) -> None:
    assert state.silence(100.9 + LATE_S) == ""
    assert state.silence(104.0) == "no answer from tcp://h:1 for 4 s"


def test_the_reason_of_a_silence_is_shown_without_its_own_deadline(state: LiveState) -> None:
    state.fail("no answer from tcp://h:1 within 5 s: is a feeder serving there?")
    line = "no answer from tcp://h:1 for 2 min: is a feeder serving there?"
    assert state.silence(220.0) == line
    state.fail("the key is not known\x1b[2J")
    assert state.silence(220.0).endswith("2 min: the key is not known?[2J")


def test_a_paused_screen_knows_no_silence(state: LiveState) -> None:
    state.on_keys(b"p", 101.0)
    assert state.silence(900.0) == ""
    assert "PAUSED" in state.keys_note().plain
    state.on_keys(b"p", 900.0)
    assert "PAUSED" not in state.keys_note().plain
    assert state.silence(901.0) == "", "counted from where it goes on"


def test_the_note_names_scroll_keys_only_where_something_scrolls(state: LiveState) -> None:
    assert state.keys_note().plain == "arrows scroll  p pause  q quit"
    state.scroll_max = 0
    assert state.keys_note().plain == "p pause  q quit"
