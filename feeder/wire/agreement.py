"""Whether two processes make the same bytes, by their self-tests; and what to say where not.

It needs none of the libraries that make bytes: supervisor, node process and client compare what
others have computed (``feeder.sample.self_test``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from feeder.errors import DisagreementError


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes bytes, and with what."""

    name: str
    self_test: str
    libraries: Mapping[str, str]
    """Version of each library by its name."""


class Agreement:
    """Remembers who came first in a daemon: all that come later must make the same bytes."""

    def __init__(self) -> None:
        self._first: Maker | None = None

    @property
    def self_test(self) -> str:
        """The self-test of all; empty before there is one."""
        return "" if self._first is None else self._first.self_test

    def check(self, maker: Maker) -> None:
        """Raise DisagreementError, which names both, where ``maker`` differs from the first."""
        self._first = self._first or maker
        disagreement = find_disagreement(self._first, maker)
        if disagreement is not None:
            raise DisagreementError(
                f"{disagreement}; were libraries installed meanwhile? Start the daemon again"
            )


def find_disagreement(one: Maker, other: Maker) -> str | None:
    """Return in one line that two would make different batches, or None where they agree.

    The line names both, their self-tests, and the libraries that have different versions.
    """
    if one.self_test == other.self_test:
        return None
    names = [
        name
        for name in {**one.libraries, **other.libraries}
        if one.libraries.get(name) != other.libraries.get(name)
    ]
    return (
        f"{one.name} and {other.name} would make different batches of the same dataset: "
        f"{_describe(one, names)}, {_describe(other, names)}"
    )


def _describe(maker: Maker, names: list[str]) -> str:
    versions = [f"{name} {maker.libraries.get(name, 'missing')}" for name in names]
    return (
        f"self-test {maker.self_test} with {', '.join(versions) or 'libraries of equal versions'}"
    )
