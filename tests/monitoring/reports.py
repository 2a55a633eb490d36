"""Reports of hosts, made up for tests."""

from feeder.metrics.records import (
    BOUNDS_S,
    CacheRecord,
    ClientRecord,
    Histogram,
    NodeRecord,
    SlotSeconds,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport, NodeReport, Verdict
from tests.support.host_reports import IMAGENET

HISTOGRAM = Histogram(counts=[1, 2, *[0] * (len(BOUNDS_S) - 2), 4], total_s=300.25)


def client(name: str, images: int, waited_s: float = 0.0) -> ClientRecord:
    return ClientRecord(
        name=name,
        account="user 1000",
        dataset="d",
        is_lent=True,
        images=images,
        waited_s=waited_s,
        clock_s=waited_s and 10.0 * images / 1000,
    )


def node_snapshot(
    at_s: float, *, number: int = 0, images: int = 0, clients: tuple[ClientRecord, ...] = ()
) -> NodeRecord:
    return NodeRecord(
        number=number,
        name=f"h/{number}",
        pid=40 + number,
        clock_s=at_s,
        uptime_s=at_s,
        endpoints=("tcp://127.0.0.1:5555",),
        workers=tuple(
            WorkerRecord(number=worker, pid=50, state=state, silent_s=silent_s, busy_s=at_s / 2)
            for worker, (state, silent_s) in enumerate((("busy", 0.0), ("silent", 2.5)))
        ),
        clients=clients,
        images=images,
        stages={"read": 1.5, "decode": 20.0},
        slots=SlotSeconds(free=2 * at_s, filling=0.5 * at_s, client=1.5 * at_s),
        queued_batches=3,
        cache=CacheRecord(budget_bytes=1000, used_bytes=10, full_bytes=2000, hits=7, misses=3),
        silences=1,
        chunk_s=HISTOGRAM,
        batch_s=HISTOGRAM,
        counters={
            "node": "h/0",
            "frames_dropped.malformed": 5,
            "frames_dropped.newly-found": 2,
            "sessions_closed": 4,
            "sessions_expired": 1,
            "batches_failed.bad-sample": 6,
            "batches_failed.stalled-storage": 1,
            "bad_samples": 2,
            "fallbacks.turbojpeg": 5,
            "fallbacks.copied-tcp": 8,
            "library_warnings": 1,
            "worker_pause_s": 0.25,
            "sessions": 2,
        },
    )


def node_in(state: str, number: int = 0, since_s: float = 0.0) -> NodeReport:
    return NodeReport(number=number, state=state, since_s=since_s)  # type: ignore[arg-type]


def host_report(*nodes: NodeReport, kind: str = "healthy", at_s: float = 100.0) -> HostReport:
    load = HostLoad(clock_s=at_s, usable_cpus=2.0, cpus=2, busy_s=50.0, pressure_io_s=4.5)
    return HostReport(
        host="h",
        feeder_version="1.2.3",
        pid=7,
        clock_s=at_s,
        uptime_s=at_s,
        datasets=(IMAGENET,),
        nodes=nodes,
        load=load,
        load_before=load,
        verdict=Verdict(kind=kind, text=f"{kind}: so it is", is_problem=kind != "healthy"),  # type: ignore[arg-type]
    )


def busy_report(at_s: float = 100.0) -> HostReport:
    """Two node processes, which made 1000 and 500 images in 10 s."""
    nodes = []
    for number, images in ((0, 1000), (1, 500)):
        name = f"trainer pid {number}123 rank 3"
        clients = client(name, 0), client(name, images, waited_s=images / 400)
        before = node_snapshot(at_s - 10, number=number, images=5, clients=clients[:1])
        now = node_snapshot(at_s, number=number, images=5 + images, clients=clients[1:])
        nodes.append(NodeReport(number=number, state="ready", now=now, before=before))
    return host_report(*nodes, at_s=at_s)
