"""Rates and waits by client, of at most CLIENTS_MAX clients at a time; the others are one.

A client's name is without its process id, so that a job that is restarted keeps its series.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from feeder.diagnosis.client_interval import ClientInterval
from feeder.metrics.records import OTHERS
from feeder.monitoring.families import gauge

CLIENTS_MAX: Final = 64
OTHER: Final = "other"

_PID: Final = re.compile(r" pid [0-9]+")
_CLIENT_CHARS_MAX: Final = 128


def name_client(name: str) -> str:
    """Return a client's label: its name without the process id."""
    return OTHER if name == OTHERS else _PID.sub("", name, count=1)[:_CLIENT_CHARS_MAX]


def describe_clients(clients: Iterable[ClientInterval]) -> Iterator[Metric]:
    """Yield the metrics of all clients, those with the same label as one."""
    images: dict[str, float] = {}
    waits: dict[str, dict[tuple[str, str], float]] = {}
    for client in clients:
        label = name_client(client.name)
        images[label] = images.get(label, 0.0) + client.images_a_s
        if client.wait_share is not None:
            own = waits.setdefault(label, {})
            key = client.account, client.name
            own[key] = own.get(key, 0.0) + client.wait_share
    ranked = sorted(images, key=lambda label: (label == OTHER, -images[label], label))
    labels = {label: label if at < CLIENTS_MAX else OTHER for at, label in enumerate(ranked)}
    totals: dict[str, float] = {}
    shares: dict[str, list[float]] = {}
    for label, shown in labels.items():
        totals[shown] = totals.get(shown, 0.0) + images[label]
        each = (min(1.0, share) for share in waits.get(label, {}).values())
        shares.setdefault(shown, []).extend(each)
    yield gauge(
        "client_images_per_second",
        "Images a second by client, over the last seconds.",
        ["client"],
        (([label], rate) for label, rate in totals.items()),
    )
    yield gauge(
        "client_wait_ratio",
        "Share of its time in which a client's training loop waited for this host.",
        ["client"],
        (([label], sum(own) / len(own)) for label, own in shares.items() if own),
    )
