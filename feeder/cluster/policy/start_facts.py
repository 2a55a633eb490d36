"""What a daemon logs at its start: where it serves, what, and with which libraries. Pure.

    endpoints of node process 0: tcp://10.0.0.1:5555
    data imagenet: 1,281,167 samples, 1,024 shards, 1,000 classes, 24809539c64e
    libraries: feeder 0.1.0, python 3.11.7, numpy 2.4.6
    self-test: 821c36be8fe6
    ready, 16 workers serve imagenet at tcp://10.0.0.1:5555

Hosts are compared by them: feeders whose self-tests or datasets differ would give different bytes
for the same batch.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "feeder: "
_ENDPOINTS: Final = re.compile(r"endpoints of node process (\d{1,4}): (.+)")
_DATA: Final = re.compile(r"data ([A-Za-z0-9._-]{1,128}): .*, ([0-9a-f]{6,32})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What a daemon logged until it was ready."""

    endpoints: tuple[tuple[str, ...], ...]
    """Of each node process, by number."""
    data: Mapping[str, str]
    """The content fingerprint of each dataset, shortened, by name."""
    libraries: Mapping[str, str]
    self_test: str


def read_facts(lines: Iterable[str]) -> StartFacts | None:
    """The facts in the log so far; None unless its last line reports readiness."""
    endpoints: dict[int, list[str]] = {}
    data: dict[str, str] = {}
    libraries: dict[str, str] = {}
    self_test, is_ready = "", False
    for line in lines:
        text = line.strip().removeprefix(PREFIX)
        is_ready = text.startswith("ready, ")
        if match := _ENDPOINTS.fullmatch(text):  # a long list takes several lines
            endpoints.setdefault(int(match[1]), []).extend(match[2].split(", "))
        elif match := _DATA.fullmatch(text):
            data[match[1]] = match[2]
        elif text.startswith("libraries: "):
            items = text.removeprefix("libraries: ").split(", ")
            libraries |= dict(each.partition(" ")[::2] for each in items)
        elif text.startswith("self-test: "):
            self_test = text.removeprefix("self-test: ")
    if not (is_ready and endpoints):
        return None
    return StartFacts(
        endpoints=tuple(tuple(each) for _, each in sorted(endpoints.items())),
        data=data,
        libraries=libraries,
        self_test=self_test,
    )


def describe_difference(here: str, first: StartFacts, second: StartFacts) -> str:
    """One line on why a second host cannot serve jobs with the first, at ``here``; "" if it can."""
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
    """One line on hosts whose libraries differ though their batches agree; "" if none."""
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
