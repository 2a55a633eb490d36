"""The report of ``feeder-bench gpu``: which checks passed, then what was measured.

Invariant: a check has failed exactly when it has a line in ``failures``; a check that a CPU cannot
judge never fails.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..report import JudgedReport, Result

Verdict = Literal["passed", "failed", "not judged on a CPU"]

_COLUMNS: Final = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Verdict
    sentence: str
    """The figure, and by how much it misses the target."""
    results: Sequence[Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport(JudgedReport):
    """A report that begins with the verdict of each check."""

    checks: Sequence[Mapping[str, str]]
    """Each check's "name", "verdict" and "sentence"."""

    @classmethod
    def of(
        cls,
        checks: Sequence[Check],
        *,
        machine: Mapping[str, object],
        measured: Mapping[str, object],
    ) -> "GpuReport":
        """Return the report of ``checks``."""
        return cls(
            bench="gpu",
            machine=machine,
            measured=measured,
            results=[row for check in checks for row in check.results],
            failures=[
                f"{check.name}: {check.sentence}" for check in checks if check.verdict == "failed"
            ],
            checks=[
                {"name": check.name, "verdict": check.verdict, "sentence": check.sentence}
                for check in checks
            ],
        )

    def to_text(self) -> str:
        """Return the conclusion, header and table as text, with a newline at its end."""
        head, _, rest = JudgedReport.to_text(self).partition("\n")
        lines = textwrap.wrap(f"{head} {self._headline()}", _COLUMNS)
        for check in self.checks:
            text = f"{check['name']}: {check['verdict']}; {check['sentence']}"
            lines += textwrap.wrap(text, _COLUMNS, initial_indent="  ", subsequent_indent="    ")
        return "\n".join([*lines, "", rest])

    def _headline(self) -> str:
        names: dict[str, list[str]] = {}
        for check in self.checks:
            names.setdefault(check["verdict"], []).append(check["name"])
        verdict = "failed" if self.failures else "passed"
        return f"{verdict}: " + "; ".join(
            f"{', '.join(names[each])} {each}"
            for each in ("failed", "passed", "not judged on a CPU")
            if each in names
        )


def judge(is_met: bool, *, device_type: str) -> Verdict:
    """Return the verdict on a target of speed, which is set for CUDA devices only."""
    if device_type != "cuda":
        return "not judged on a CPU"
    return "passed" if is_met else "failed"


def judge_share(share: float, target: float, of: str, *, device_type: str) -> tuple[Verdict, str]:
    """Return the verdict on a share that should be at least ``target``, and the share in words."""
    verdict = judge(share >= target, device_type=device_type)
    text = f"{100 * share:.0f} % of {of} (target: {100 * target:.0f} %)"
    if verdict == "failed":
        text += f", {100 * (target - share):.1f} points too little"
    return verdict, text
