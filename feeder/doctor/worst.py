"""The warnings about the machine that ``feeder serve`` logs when it starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feeder.doctor.findings.conditions import find_all
from feeder.doctor.findings.finding import Finding, Severity
from feeder.doctor.read_machine import read_for_serving
from feeder.process.path_text import printable

WARNINGS_MAX: Final = 3


def find_worst(root: Path, datasets: Sequence[Path]) -> list[str]:
    """Return up to WARNINGS_MAX lines about the machine below ``root``, the worst first.

    Each states what is wrong and, where one line mends it, that line. Takes some milliseconds and
    never raises: no fault in inspecting the machine may keep the daemon from serving.
    """
    try:
        found = find_all(read_for_serving(root, datasets))
    except Exception as error:  # noqa: BLE001 -- see above
        reason = ": ".join(filter(None, [type(error).__name__, str(error)]))
        return [printable(f"the machine could not be inspected ({reason}); see `feeder doctor`")]
    warnings = [finding for finding in found if finding.severity >= Severity.WARNING]
    lines = [_describe(finding) for finding in warnings[:WARNINGS_MAX]]
    if len(warnings) > WARNINGS_MAX:
        lines[-1] += f", with {len(warnings) - WARNINGS_MAX} more"
    return lines


def _describe(finding: Finding) -> str:
    """Return a finding with its first line to type, in one line."""
    command = finding.mend[0] if finding.mend else ""
    for line in finding.mend[1:]:
        if not command.endswith("\\"):
            break
        command = f"{command[:-1].rstrip()} {line.strip()}"
    text, _, comment = command.partition("   #")
    remedy = f": {text.rstrip()}" + (f" ({comment.strip()})" if comment else "") if command else ""
    return printable(f"{finding.what}{remedy}; see `feeder doctor`")
