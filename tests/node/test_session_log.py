"""What a node process logs of sessions: the id of the client's log, the client, the level."""

import logging
from typing import Literal

import pytest

from feeder.node.clients import log_refusal
from feeder.node.service import log_session_end
from feeder.session.events import SessionEnd
from feeder.wire.messages import Refused
from feeder.wire.session_id import session_id
from tests.support.session_shell import make_session

SESSION = 0x7FFF_FFFF_1A2B_3C4D


def test_a_session_id_is_the_end_of_its_number_in_eight_digits() -> None:
    assert session_id(SESSION) == "1a2b3c4d"
    assert session_id(10) == "0000000a"


@pytest.mark.parametrize(
    ("how", "level", "text"),
    [
        ("closed", "DEBUG", "ended"),
        ("lost", "INFO", "lost: its process or its connection has ended"),
        ("expired", "WARNING", "expired: its client was silent for 15 s"),
    ],
)
def test_the_end_of_a_session_is_logged_with_its_id_and_client(
    how: SessionEnd, level: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log_session_end(
        make_session(SESSION, "user 1000", "resnet", client="gpu-3 pid 7 rank 5"), how, 15.0
    )
    line = f"session 1a2b3c4d of gpu-3 pid 7 rank 5 in job resnet (user 1000) on d: {text}"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line)]
    assert vars(caplog.records[0])["session"] == "1a2b3c4d"
    assert vars(caplog.records[0])["client"] == "user 1000"


def test_names_that_a_client_gives_move_no_cursor(caplog: pytest.LogCaptureFixture) -> None:
    log_session_end(make_session(SESSION, "user 1", client="a\u202eb"), "expired", 15.0)
    assert r"session 1a2b3c4d of a\u202eb (user 1) on d: " in caplog.text


@pytest.mark.parametrize(
    ("code", "session", "level", "line"),
    [
        ("memory", None, "WARNING", "refused address 10.0.0.7 (memory): no room"),
        ("bad-recipe", None, "INFO", "refused address 10.0.0.7 (bad-recipe): no room"),
        (
            "window",
            SESSION,
            "INFO",
            "refused session 1a2b3c4d of address 10.0.0.7 (window): no room",
        ),
    ],
)
def test_a_refusal_is_a_warning_where_the_feeder_lacks_something(
    code: Literal["memory", "bad-recipe", "window"],
    session: int | None,
    level: str,
    line: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    log_refusal(Refused(code=code, message="no room", session=session), "address 10.0.0.7")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line)]
