"""Parses the head of an HTTP request. Pure.

Source: RFC 9112 (HTTP/1.1), sections 3 and 5.
"""

import re
from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 8192
END: Final = b"\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that matter here."""

    method: str
    path: str
    """Without the query."""
    accept: str
    authorization: bytes


def parse_head(head: bytes) -> Request | None:
    """Return the request of a head, without its END; None if it is malformed."""
    line, *fields = head.split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(line)
    if start is None:
        return None
    values: dict[bytes, bytes] = {}
    for field in fields:
        match = _FIELD.fullmatch(field)
        if match is None or b"\n" in field or b"\0" in field:
            return None
        values[match[1].lower()] = match[2]
    return Request(
        method=start[1].decode("ascii"),
        path=start[2].partition(b"?")[0].decode("ascii"),
        accept=values.get(b"accept", b"").decode("latin-1"),
        authorization=values.get(b"authorization", b""),
    )
