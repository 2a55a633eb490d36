"""The state of a cluster as lines for people. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from feeder.metrics.figures import duration, plural

_SILENT_S: Final = 5.0
"""A turn of the controller takes a quarter of a second."""


def format_status(status: Mapping[str, Any]) -> list[str]:
    """The lines of ``feeder cluster status``, from its JSON."""
    hosts = status["hosts"]
    rows = [
        (
            f"feeder-{slot['slot']}",
            slot["address"],
            f"{slot['state']} {duration(slot['seconds'])}",
            ", ".join(slot["endpoints"]),
        )
        for slot in status["slots"]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    notes = [*map(_describe, status["problems"]), *status["notes"]]
    if status["silent_s"] > _SILENT_S:
        notes.append(f"the controller has waited {duration(status['silent_s'])} for Ray's head")
    notes += filter(None, [status["list_problem"]])
    where = ", ".join(filter(None, (status["lookup"], status["endpoints_file"])))
    return [
        f"{status['ready']} of {status['wanted']} feeders serve; {plural(hosts, 'host')} "
        f"{'offers' if hosts == 1 else 'offer'} the resource {status['resource']!r}",
        *(f"  {line}" for line in (*table, *notes)),
        *([f"endpoints: {where}"] if where else []),
    ]


def describe_shortfall(status: Mapping[str, Any], timeout_s: float) -> str:
    """One line on why fewer feeders serve than could."""
    ready, wanted = status["ready"], min(status["wanted"], status["hosts"])
    problems = status["problems"]
    if problems:
        worst = max(problems, key=lambda each: each["failures"])
        why = f"{worst['address']} cannot serve: {worst['reason']}"
        if len(problems) > 1:
            why += f" ({plural(len(problems) - 1, 'more host')} in `feeder cluster status`)"
    else:
        states = ", ".join(f"{each['address']} {each['state']}" for each in status["slots"])
        why = f"{states or 'none was launched'}; see `feeder cluster status`"
    late = "" if status.get("is_stuck") else f" after {timeout_s:g} s"
    return f"{ready} of {wanted} feeders serve{late}: {why}"


def _describe(problem: Mapping[str, Any]) -> str:
    retry = f", next attempt in {duration(problem['retry_s'])}" if problem["retry_s"] > 0 else ""
    failures = plural(problem["failures"], "failure")
    return f"{problem['address']}: {failures}{retry}: {problem['reason']}"
