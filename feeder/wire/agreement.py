"""Compares the self-tests of two processes, which show whether they make the same bytes.

It needs none of the libraries that make bytes: supervisor, node process and client only compare
self-tests that were computed elsewhere (``feeder.sample.self_test``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from feeder.errors import DisagreementError


@dataclass(frozen=True, slots=True)
class Producer:
    """A process or node that makes batches, with its self-test and libraries."""

    name: str
    self_test: str
    libraries: Mapping[str, str]
    """Version of each library by its name."""


class Agreement:
    """Checks each later process of a daemon against the first: all must make the same bytes."""

    def __init__(self) -> None:
        self._first: Producer | None = None

    @property
    def self_test(self) -> str:
        """The self-test that all share; empty before the first."""
        return "" if self._first is None else self._first.self_test

    def check(self, producer: Producer) -> None:
        """Raise DisagreementError, naming both, where ``producer`` differs from the first."""
        self._first = self._first or producer
        disagreement = find_disagreement(self._first, producer)
        if disagreement is not None:
            raise DisagreementError(
                f"{disagreement}; if libraries were installed meanwhile, restart the daemon"
            )


def find_disagreement(one: Producer, other: Producer) -> str | None:
    """Return None where two agree, else one line on how they differ.

    The line names both, their self-tests, and the libraries with different versions.
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


def _describe(producer: Producer, names: list[str]) -> str:
    versions = [f"{name} {producer.libraries.get(name, 'missing')}" for name in names]
    libraries = ", ".join(versions) or "libraries of equal versions"
    return f"self-test {producer.self_test} with {libraries}"
