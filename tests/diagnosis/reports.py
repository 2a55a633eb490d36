"""Reports of ten seconds, in which the given totals grew from zero."""

from collections.abc import Mapping
from typing import Any

import msgspec

from feeder.metrics.records import ClientRecord, NodeRecord, WorkerRecord
from feeder.metrics.report import HostLoad, HostReport, NodeReport, Verdict

SECONDS = 10.0
UNDECIDED = Verdict(kind="starting", text="", is_problem=False)


def worker(number: int, **totals: Any) -> WorkerRecord:
    """Its record at the end."""
    return WorkerRecord(**({"number": number, "pid": 100 + number, "state": "busy"} | totals))


def client(name: str, **totals: Any) -> ClientRecord:
    """Its record at the end."""
    fields = {
        "account": "user 0",
        "dataset": "d",
        "is_lent": True,
        "is_local": True,
        "window": 4,
        "clock_s": SECONDS,
    }
    return ClientRecord(name=name, **(fields | totals))


def node(
    number: int = 0,
    *,
    workers: tuple[WorkerRecord, ...] = (),
    clients: tuple[ClientRecord, ...] = (),
    seconds: float = SECONDS,
    state: Any = "ready",
    before: Mapping[str, Any] | None = None,
    **totals: Any,
) -> NodeReport:
    """A node process; ``before`` are fields of its first record."""
    empty = NodeRecord(
        number=number,
        name=f"host/{number}",
        pid=10 + number,
        clock_s=1000.0,
        uptime_s=500.0,
        endpoints=("ipc:///n",),
        workers=tuple(WorkerRecord(number=w.number, pid=w.pid, state="idle") for w in workers),
        clients=tuple(map(_start_of_client, clients)),
        **(before or {}),
    )
    now = msgspec.structs.replace(
        empty,
        clock_s=empty.clock_s + seconds,
        uptime_s=empty.uptime_s + seconds,
        workers=workers,
        clients=clients,
        **totals,
    )
    return NodeReport(number=number, state=state, now=now, before=empty)


def report(*nodes: NodeReport, cpus: int = 8, busy_cpus: float = 0.0, **load: Any) -> HostReport:
    """A host; ``load`` are totals of its machine."""
    before = HostLoad(clock_s=1000.0, usable_cpus=float(cpus), cpus=cpus)
    now = msgspec.structs.replace(
        before, clock_s=1000.0 + SECONDS, busy_s=busy_cpus * SECONDS, **load
    )
    return HostReport(
        host="host",
        feeder_version="0",
        pid=1,
        clock_s=now.clock_s,
        uptime_s=500.0,
        datasets=(),
        nodes=nodes,
        load=now,
        load_before=before,
        verdict=UNDECIDED,
    )


def _start_of_client(client: ClientRecord) -> ClientRecord:
    return ClientRecord(name=client.name, account=client.account, dataset=client.dataset)
