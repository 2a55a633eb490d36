"""What the daemon logs at its start: one fact a line, the last one "ready" (docs/serving.md).

Lines are of at most WIDTH columns where their facts are short enough. Programs that start a daemon
read the lines that begin with ENDPOINTS and with READY.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Final, TypeAlias

from feeder.daemon.config import Config
from feeder.dataset.first_read import check_readable
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.disk_cache.cached import is_cached, read_origin
from feeder.errors import ConfigError, name_some
from feeder.metrics.report import ServedDatasetReport
from feeder.node.endpoint import parse_endpoint
from feeder.node.messages import NodeReady
from feeder.process.path_text import path_from_bytes, printable
from feeder.worker.messages import MEMBER_PREFIX, SelectionSource

ENDPOINTS: Final = "endpoints of node process "
READY: Final = "ready, "
WIDTH: Final = 80  # with the prefix
_PREFIX: Final = len("feeder: ")
_FINGERPRINT_CHARS: Final = 12  # enough to compare fingerprints and self-tests
_PATH_CHARS_MAX: Final = 512

Line: TypeAlias = tuple[str, int]
"""A line of the report, and its level."""


def describe_datasets(folders: Mapping[str, Path]) -> list[tuple[ServedDatasetReport, str]]:
    """Open each dataset and describe it, for reports of the host and in lines, by name.

    FeederError if there is none, or one is damaged or does not answer.
    """
    if not folders:
        raise ConfigError("there is nothing to serve: give --data NAME=FOLDER, or [data] in a file")
    check_readable({f"dataset {name} at {path}": path for name, path in folders.items()})
    described = []
    for name, folder in sorted(folders.items()):
        with Dataset.open(folder) as dataset:
            layout, content = dataset.layout, dataset.content
            labels = dataset.labels.describe(len(dataset.classes))
            url = read_origin(folder).url if is_cached(folder) else ""
            report = ServedDatasetReport(
                name=name,
                samples=layout.samples,
                classes=len(dataset.classes),
                content=content,
                fingerprint=dataset.manifest.fingerprint,
                folder=printable(url or str(folder))[-_PATH_CHARS_MAX:],
            )
        line = (
            f"data {name}: {layout.samples:,} sample{'s' * (layout.samples != 1)}, "
            f"{layout.shards:,} shard{'s' * (layout.shards != 1)}, {labels}, "
            f"{content[:_FINGERPRINT_CHARS]}"
        )
        if url:
            line += f"\ndata {name}: pieces of {printable(url)} in {printable(str(folder))}"
        described.append((report, line))
    return described


def describe_selections(
    sources: Mapping[str, SelectionSource],
) -> list[tuple[ServedDatasetReport, str]]:
    """Describe each selection as ``describe_datasets`` does; DatasetError if one is damaged."""
    described = []
    for name, source in sorted(sources.items()):
        path = path_from_bytes(source.path)
        selection = Selection.open(path, content=source.content)
        samples, labels = selection.samples, selection.labels
        report = ServedDatasetReport(
            name=name,
            samples=samples,
            classes=len(selection.classes),
            content=selection.content,
            fingerprint=selection.content,
            folder=printable(str(path))[-_PATH_CHARS_MAX:],
        )
        members = [
            printable(member.name if served.startswith(MEMBER_PREFIX) else served)
            for served, member in zip(source.members, selection.members, strict=True)
        ]
        draws = ""
        if selection.layout.draws is not None:
            draws = f"{selection.layout.samples:,} draws an epoch, "
        line = (
            f"data {name}: {samples:,} sample{'s' * (samples != 1)} of {name_some(members)}, "
            f"{draws}"
            f"{labels.describe(len(selection.classes))}, {selection.content[:_FINGERPRINT_CHARS]}"
        )
        described.append((report, line))
    return described


def compose_report(
    config: Config, ready: Sequence[NodeReady], data: Iterable[str], decoded_bytes: int
) -> Iterator[Line]:
    """Yield the lines after warnings; ``ready`` is by number, ``data`` a line each.

    ``decoded_bytes`` is the decoded cache of a node process.
    """
    facts: list[str] = []
    for number, report in enumerate(ready):
        facts += wrap_list(f"{ENDPOINTS}{number}: ", report.endpoints)
    facts += [*"\n".join(data).splitlines(), f"decoder: {ready[0].decoder}"]
    facts += wrap_list("libraries: ", [" ".join(pair) for pair in ready[0].libraries.items()])
    facts.append(f"self-test: {ready[0].self_test[:_FINGERPRINT_CHARS]}")
    facts.append(describe_cache(config, decoded_bytes))
    yield from ((text, INFO) for text in facts)
    yield describe_security(config)


def wrap_list(head: str, items: Sequence[str]) -> Iterator[str]:
    """Yield lines that begin with ``head`` and hold as many items as fit, but one at least."""
    line = ""
    for item in items:
        if line and _PREFIX + len(line) + len(", ") + len(item) > WIDTH:
            yield line
            line = ""
        line = f"{line}, {item}" if line else f"{head}{item}"
    if line:
        yield line


def describe_cache(config: Config, decoded_bytes: int) -> str:
    """The size of a node process's decoded cache and its origin, in a line."""
    where = config.provenance["cache.decoded_bytes"]
    if decoded_bytes == 0:
        return f"decoded cache: off (cache.decoded_bytes: {where})"
    is_auto = config.cache.decoded_bytes == "auto"
    origin = f"{'auto' if is_auto else 'decoded_bytes'}: {where}"
    return f"decoded cache: {decoded_bytes / 1e9:.2f} GB a node process ({origin})"


def describe_security(config: Config) -> Line:
    """Which clients tcp accepts, as a warning if these are all."""
    serve = config.serve
    endpoints = [parse_endpoint(text) for text in serve.bind]
    if all(endpoint.transport == "ipc" for endpoint in endpoints):
        return f"security: ipc only, its sockets have mode {serve.socket_mode}", INFO
    if serve.secret_key:
        return f"security: tcp is encrypted, for the keys in {serve.client_keys}", INFO
    exposed = ", ".join(str(endpoint) for endpoint in endpoints if not endpoint.is_local)
    if exposed:
        return f"--insecure: anyone who can reach {exposed} can connect", WARNING
    return "security: plain tcp, for clients of this machine only", INFO


def describe_ready(ready: Sequence[NodeReady], datasets: Sequence[str]) -> str:
    """The last line, which is systemd's status, too."""
    workers = sum(len(report.worker_pids) for report in ready)
    endpoints = [endpoint for report in ready for endpoint in report.endpoints]
    names = datasets[0] if len(datasets) == 1 else f"{len(datasets)} datasets"
    more = f" and {len(endpoints) - 1} more" if len(endpoints) > 1 else ""
    do = "worker serves" if workers == 1 else "workers serve"
    return f"{READY}{workers} {do} {names} at {endpoints[0]}{more}"
