"""What the checks in the guest say to the host, line by line."""

import sys
from dataclasses import dataclass


@dataclass
class Report:
    """Counts and prints the assertions."""

    passed: int = 0
    failed: int = 0

    def check(self, good: bool, claim: str, seen: object) -> None:
        """Print one assertion with what was seen."""
        self.passed += good
        self.failed += not good
        self.say(f"{'ok  ' if good else 'FAIL'}  {claim}: {seen}")

    def say(self, line: str) -> None:
        """Print a line at once: the host sees how far the guest got, whatever happens."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def finish(self) -> None:
        """Print the summary that the host looks for, and exit."""
        self.say(f"{self.passed} passed, {self.failed} failed")
        sys.exit(self.failed > 0)
