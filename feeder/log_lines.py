"""Log lines of the daemon's processes: one for an event, on stderr, for people and journals."""

import logging
import sys


class _OneLine(logging.Formatter):
    """``feeder: node 0: warning: message``; the journal adds the time, people do not need it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"feeder: {self._source}{level}{record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text


def start_logging(level: str, source: str = "") -> None:
    """Send this process's log lines from ``level`` on to stderr; ``source`` says who speaks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(source))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
