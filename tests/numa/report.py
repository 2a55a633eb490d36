"""The results of the checks in the guest, printed line by line for the host."""

import sys
from dataclasses import dataclass


@dataclass
class Report:
    """Counts and prints the checks."""

    passed: int = 0
    failed: int = 0

    def check(self, good: bool, claim: str, seen: object) -> None:
        """Print one check with the observed value."""
        self.passed += good
        self.failed += not good
        self.log(f"{'ok  ' if good else 'FAIL'}  {claim}: {seen}")

    def log(self, line: str) -> None:
        """Print a line and flush, so that the host has the progress even if the guest dies."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def finish(self) -> None:
        """Print the summary, which the host parses, and exit."""
        self.log(f"{self.passed} passed, {self.failed} failed")
        sys.exit(self.failed > 0)
