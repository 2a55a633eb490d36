"""The state of a cluster as lines for people. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_SILENT_S: Final = 5.0
"""A turn of the controller takes a quarter of a second."""


def format_status(status: Mapping[str, Any]) -> list[str]:
    """Return the lines of ``feeder cluster status``."""
    return [*_format(status)]


def _format(status: Mapping[str, Any]) -> Iterator[str]:
    wanted, hosts = status["wanted"], status["hosts"]
    yield (
        f"{status['ready']} of {wanted} feeders serve; {_count(hosts, 'host')} "
        f"{'offers' if hosts == 1 else 'offer'} the resource {status['resource']!r}"
    )
    rows = [
        (
            f"feeder-{slot['slot']}",
            slot["address"],
            f"{slot['state']} {_duration(slot['seconds'])}",
            ", ".join(slot["endpoints"]),
        )
        for slot in status["slots"]
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()
    for problem in status["problems"]:
        yield f"  {_describe(problem)}"
    for note in status["notes"]:
        yield f"  {note}"
    if status["silent_s"] > _SILENT_S:
        yield f"  the controller has waited {_duration(status['silent_s'])} for Ray's head"
    if status["list_problem"]:
        yield f"  {status['list_problem']}"
    where = [each for each in (status["lookup"], status["endpoints_file"]) if each]
    if where:
        yield f"endpoints: {', '.join(where)}"


def describe_shortfall(status: Mapping[str, Any], timeout_s: float) -> str:
    """Return one line on why fewer feeders serve than could."""
    ready, wanted = status["ready"], min(status["wanted"], status["hosts"])
    problems = status["problems"]
    if problems:
        worst = max(problems, key=lambda each: each["failures"])
        more = f" ({_count(len(problems) - 1, 'more host')} in `feeder cluster status`)"
        why = f"{worst['address']} cannot serve: {worst['reason']}"
        why += more if len(problems) > 1 else ""
    else:
        states = ", ".join(f"{each['address']} {each['state']}" for each in status["slots"])
        why = f"{states or 'none was launched'}; see `feeder cluster status`"
    late = "" if status.get("is_stuck") else f" after {timeout_s:g} s"
    return f"{ready} of {wanted} feeders serve{late}: {why}"


def _describe(problem: Mapping[str, Any]) -> str:
    retry = f", next attempt in {_duration(problem['retry_s'])}" if problem["retry_s"] > 0 else ""
    failures = _count(problem["failures"], "failure")
    return f"{problem['address']}: {failures}{retry}: {problem['reason']}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
