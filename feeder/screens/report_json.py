"""A report with its rates as one JSON object, for programs."""

import json
from dataclasses import asdict
from typing import Any

import msgspec

from feeder.metrics.report import HostReport
from feeder.screens.host_view import HostView


def to_json(report: HostReport, indent: int | None = None) -> str:
    """Return ``verdict``, ``rates`` (of the interval) and the whole ``report`` as JSON.

    Shares are from 0 to 1 and null where nothing was measured. The fields are those of
    ``feeder.diagnosis.interval`` and ``feeder.metrics``.
    """
    return json.dumps(report_fields(report), indent=indent)


def report_fields(report: HostReport) -> dict[str, Any]:
    """Return what ``to_json`` writes."""
    return {
        "verdict": msgspec.to_builtins(report.verdict),
        "rates": _rates(HostView(report)),
        "report": msgspec.to_builtins(report),
    }


def _rates(view: HostView) -> dict[str, Any]:
    interval = view.interval
    return {
        "seconds": interval.seconds,
        "images_a_s": interval.images_a_s,
        "sent_bytes_a_s": view.sent_bytes_a_s,
        "lent_bytes_a_s": view.lent_bytes_a_s,
        "workers": interval.workers,
        "busy_workers": interval.busy_workers,
        "busy_share": interval.busy_share,
        "wait_share": interval.wait_share,
        "page_cache_share": view.page_cache_share,
        "cache_hit_share": view.cache_hit_share,
        "stages": dict(interval.stages),
        "slots": msgspec.to_builtins(view.slots),
        "jobs": [asdict(job) for job in interval.jobs],
        "clients": [asdict(client) for client in view.clients],
        "nodes": [_builtins(asdict(node)) for node in interval.nodes],
        "machine": asdict(interval.machine),
    }


def _builtins(fields: dict[str, Any]) -> Any:
    return msgspec.to_builtins(fields)
