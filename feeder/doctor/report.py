"""A machine and its findings as text for a terminal, and as JSON."""

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from typing import Final

from feeder.doctor.fact_rows import list_facts
from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding, Severity
from feeder.host.topology import format_cpulist
from feeder.process.path_text import printable

_LABEL_WIDTH: Final = 14
_WIDTH_MAX: Final = 100
"""Longer lines are hard to read, whatever the terminal's width."""

_WORDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def format_report(machine: Machine, findings: Sequence[Finding], width: int) -> str:
    """Return the whole report, wrapped to ``width`` columns; lines to type are never wrapped."""
    wrapped = max(40, min(width - 1, _WIDTH_MAX))
    process = "" if machine.process == "self" else f", for process {machine.process}"
    lines = [f"The machine as Feeder sees it{process}", ""]
    for label, text in list_facts(machine):
        lines += _wrap_row(label, text, wrapped)
    problems = [finding for finding in findings if finding.severity > Severity.NOTE]
    notes = [finding for finding in findings if finding.severity == Severity.NOTE]
    lines += ["", _headline(problems)]
    for number, finding in enumerate(problems, 1):
        lines += ["", *_paragraph(f"{number}. ", finding, wrapped)]
    if notes:
        lines += ["", "Notes"]
        for finding in notes:
            lines += ["", *_paragraph("-  ", finding, wrapped)]
    return "\n".join(printable(line.rstrip()) for line in lines)  # names come from anywhere


def format_json(machine: Machine, findings: Sequence[Finding]) -> str:
    """Return one JSON object, {"machine", "findings"}; sets of CPUs are in the kernel's syntax."""
    value = {
        "machine": dataclasses.asdict(machine),
        "findings": [
            dataclasses.asdict(finding) | {"severity": _WORDS[finding.severity]}
            for finding in findings
        ],
    }
    return json.dumps(value, indent=2, default=_encode)


def _encode(value: object) -> str:
    if isinstance(value, frozenset):
        return format_cpulist(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _headline(problems: Sequence[Finding]) -> str:
    if not problems:
        return "Nothing is wrong."
    if len(problems) == 1:
        return "1 problem"
    return f"{len(problems)} problems, the worst first"


def _paragraph(mark: str, finding: Finding, width: int) -> list[str]:
    word = "" if finding.severity == Severity.NOTE else f"{_WORDS[finding.severity]}: "
    what = finding.what[:1].upper() + finding.what[1:] if not word else finding.what
    indent = " " * len(mark)
    lines = textwrap.wrap(
        f"{word}{what}",
        width,
        initial_indent=mark,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    if finding.detail:
        lines += textwrap.wrap(
            finding.detail,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    return lines + [f"{indent}    {line}" for line in finding.mend]


def _wrap_row(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"  {label:<{_LABEL_WIDTH}}",
        subsequent_indent=" " * (_LABEL_WIDTH + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )
