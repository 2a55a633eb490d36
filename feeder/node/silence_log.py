"""What a node process logs of workers that make no progress."""

import logging

from feeder.session.events import KillWorker, LogProgress, LogSilence
from feeder.wire.session_id import session_id

_log = logging.getLogger(__name__)


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
