"""The short form of a session's number, in the log lines of both sides."""

from typing import Final

_SHOWN_BITS: Final = 32


def session_id(number: int) -> str:
    """Return the last 8 hexadecimal digits of a session's number, which is random."""
    return f"{number % (1 << _SHOWN_BITS):08x}"
