"""What a daemon's log says at its start: where it serves, what, and with which libraries. Pure.

    endpoints of node process 0: tcp://10.0.0.1:5555
    data imagenet: 1,281,167 samples, 1,024 shards, 1,000 classes, 24809539c64e
    libraries: feeder 0.1.0, python 3.11.7, numpy 2.4.6
    self-test: 821c36be8fe6
    ready, 16 workers serve imagenet at tcp://10.0.0.1:5555

Hosts are compared by them: feeders whose self-tests or datasets differ would give different bytes
for the same batch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "feeder: "
_ENDPOINTS: Final = re.compile(r"endpoints of node process (\d{1,4}): (.+)")
_DATA: Final = re.compile(r"data ([A-Za-z0-9._-]{1,128}): .*, ([0-9a-f]{6,32})")
_LIBRARIES: Final = "libraries: "
_SELF_TEST: Final = "self-test: "
_READY: Final = "ready, "
_ENDPOINTS_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What a daemon logged until it was ready."""

    endpoints: tuple[tuple[str, ...], ...]
    """Of each node process, by number."""
    data: Mapping[str, str]
    """The content fingerprint of each dataset, shortened, by name."""
    libraries: Mapping[str, str]
    self_test: str


class FactsReader:
    """Reads a log line by line."""

    def __init__(self) -> None:
        self._endpoints: dict[int, list[str]] = {}
        self._data: dict[str, str] = {}
        self._libraries: dict[str, str] = {}
        self._self_test = ""

    def read(self, line: str) -> StartFacts | None:
        """Take a line; return all facts with the line that reports readiness."""
        text = line.strip().removeprefix(PREFIX)
        if found := _ENDPOINTS.fullmatch(text):
            listed = self._endpoints.setdefault(int(found[1]), [])
            listed += found[2].split(", ")[: _ENDPOINTS_MAX - len(listed)]
        elif found := _DATA.fullmatch(text):
            self._data[found[1]] = found[2]
        elif text.startswith(_LIBRARIES):
            for item in text.removeprefix(_LIBRARIES).split(", "):
                name, _, version = item.partition(" ")
                self._libraries[name] = version
        elif text.startswith(_SELF_TEST):
            self._self_test = text.removeprefix(_SELF_TEST)
        elif text.startswith(_READY) and self._endpoints:
            return StartFacts(
                endpoints=tuple(tuple(each) for _, each in sorted(self._endpoints.items())),
                data=dict(self._data),
                libraries=dict(self._libraries),
                self_test=self._self_test,
            )
        return None


def describe_difference(one: tuple[str, StartFacts], other: tuple[str, StartFacts]) -> str:
    """Return one line on why two hosts cannot serve the same jobs; empty if they can."""
    (here, first), (_, second) = one, other
    for name, fingerprint in second.data.items():
        expected = first.data.get(name)
        if expected is not None and expected != fingerprint:
            return (
                f"dataset {name} is another one there ({fingerprint}) than on {here} "
                f"({expected}): copy the same packed dataset to both, or put it on a shared folder"
            )
    if first.self_test == second.self_test:
        return ""
    versions = ", ".join(
        f"{name} {second.libraries.get(name, 'missing')} there and "
        f"{first.libraries.get(name, 'missing')} on {here}"
        for name in sorted({*first.libraries, *second.libraries})
        if first.libraries.get(name) != second.libraries.get(name)
    )
    return (
        f"it would make different batches than {here} (self-test {second.self_test} there, "
        f"{first.self_test} on {here}): {versions or 'libraries of equal versions'}; "
        "install the same versions on every host"
    )


def describe_versions(facts: Mapping[str, StartFacts]) -> str:
    """Return one line on hosts whose libraries differ though their batches agree; empty if none."""
    names = {name for each in facts.values() for name in each.libraries}
    different = []
    for name in sorted(names):
        hosts = {each.libraries.get(name, "missing"): host for host, each in facts.items()}
        if len(hosts) > 1:
            shown = ", ".join(f"{version} on {host}" for version, host in sorted(hosts.items()))
            different.append(f"{name} {shown}")
    if not different:
        return ""
    return f"libraries differ, self-tests agree: {'; '.join(different)}"
