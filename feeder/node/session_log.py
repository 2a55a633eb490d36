"""What a node process logs of its sessions, with the id that the client's log has too, and of
workers that make no progress.

Sessions that begin and end as they should are logged for debugging only; one that ended otherwise,
or was refused, always. Expired sessions and a feeder's own limits are warnings.
"""

import logging
from typing import Final

from feeder.process.path_text import printable
from feeder.session.events import KillWorker, LogEnd, LogProgress, LogSilence, OpenSlots
from feeder.wire.messages import Refused
from feeder.wire.session_id import session_id

_OWN_LIMITS: Final = frozenset(("dataset", "memory", "clients", "recipes", "rate"))
"""Refusals for what this feeder lacks; all others are for what the client did."""

_log = logging.getLogger(__name__)


def log_session_start(opened: OpenSlots, account: str) -> None:
    """Log that a session's slots exist."""
    shown = session_id(opened.session)
    _log.debug(
        "session %s of %s on %s: opened with %d slots",
        *(shown, account, opened.dataset, opened.layout.slots),
        extra={"session": shown, "client": account, "dataset": opened.dataset},
    )


def log_session_end(ended: LogEnd, lease_s: float) -> None:
    """Log that a session is over."""
    shown = session_id(ended.session)
    job = f" in job {ended.job}" if ended.job else ""
    client = f"{printable(ended.client + job)} ({ended.account})"
    what = shown, client, ended.dataset
    extra = {"session": shown, "client": ended.account, "dataset": ended.dataset}
    match ended.how:
        case "closed":
            _log.debug("session %s of %s on %s: ended", *what, extra=extra)
        case "lost":
            text = "session %s of %s on %s: lost: its process or its connection has ended"
            _log.info(text, *what, extra=extra)
        case "expired":
            text = "session %s of %s on %s: expired: its client was silent for %g s"
            _log.warning(text, *what, lease_s, extra=extra)


def log_refusal(refused: Refused, account: str) -> None:
    """Log a refusal, of a session or of the request for one."""
    level = logging.WARNING if refused.code in _OWN_LIMITS else logging.INFO
    if refused.session is None:
        extra = {"client": account}
        _log.log(level, "refused %s (%s): %s", account, refused.code, refused.message, extra=extra)
        return
    shown = session_id(refused.session)
    text = "refused session %s of %s (%s): %s"
    extra = {"session": shown, "client": account}
    _log.log(level, text, shown, account, refused.code, refused.message, extra=extra)


def log_silence(silence: LogSilence, pid: int) -> None:
    """Log that a worker has made no progress for a while, with what is known of it."""
    shown = session_id(silence.session)
    _log.warning(
        "worker %d (pid %d) has made no progress for %.1f s (kernel state: %s); it fills "
        "rows %d .. %d of dataset %s for session %s",
        *(silence.worker, pid, silence.silent_s, silence.kernel_state),
        *(silence.first, silence.first + silence.count - 1, silence.dataset, shown),
        extra={"worker": silence.worker, "session": shown},
    )


def log_progress(progress: LogProgress, pid: int) -> None:
    """Log that a silent worker has finished its chunk."""
    _log.info(
        "worker %d (pid %d) makes progress again, after %.1f s",
        *(progress.worker, pid, progress.silent_s),
        extra={"worker": progress.worker, "session": session_id(progress.session)},
    )


def describe_stuck(stuck: KillWorker) -> str:
    """Return why a worker is killed, as a part of a line."""
    match stuck.condition:
        case "stopped":
            return f"stopped for {stuck.silent_s:.1f} s"
        case "looping":
            return f"using CPU time for {stuck.silent_s:.1f} s with rows of dataset {stuck.dataset}"
        case "asleep":
            return f"asleep for {stuck.silent_s:.1f} s with rows of dataset {stuck.dataset}"
        case _:
            return f"reading dataset {stuck.dataset}"
