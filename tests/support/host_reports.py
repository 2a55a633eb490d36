"""Made-up reports of hosts, in which the given totals grew from zero in ten seconds.

``worker``, ``client``, ``node`` and ``report`` make any; ``host_report`` makes a plausible host, of
which ``REPORTS`` has variants.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from feeder.metrics.fields import merged
from feeder.metrics.records import (
    BOUNDS_S,
    OTHERS,
    CacheRecord,
    ClientRecord,
    Histogram,
    NodeRecord,
    SlotSeconds,
    StoreRecord,
    WorkerRecord,
)
from feeder.metrics.report import (
    HistoryPoint,
    HostLoad,
    HostReport,
    NodeReport,
    ServedDatasetReport,
    Verdict,
)

SECONDS: Final = 10.0
CLOCK_S: Final = 1000.0
"""At the beginning of the interval."""

IMAGE_BYTES: Final = 224 * 224 * 3
BATCH_IMAGES: Final = 256
CPU_SHARE: Final = 0.97
"""Of the time in chunks: on a CPU."""

STAGES: Final = {
    "read": 0.05,
    "join": 0,
    "decode": 0.68,
    "resize": 0.19,
    "augment": 0.04,
    "fill": 0,
}
"""Shares of the workers' time in chunks; the rest is in no stage."""

IMAGENET: Final = ServedDatasetReport(
    name="imagenet",
    samples=1_281_167,
    classes=1000,
    content="8c1f0a52d3b94e67",
    fingerprint="5e20b7719ac4d386",
    folder="/data/imagenet-packed",
)


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
    restarts: int = 0,
    before: Mapping[str, Any] | None = None,
    **totals: Any,
) -> NodeReport:
    """A node process; ``before`` are fields of its first record."""
    first: dict[str, Any] = {
        "number": number,
        "name": f"host/{number}",
        "pid": 10 + number,
        "clock_s": CLOCK_S,
        "uptime_s": 500.0,
        "endpoints": ("ipc:///n",),
        "workers": tuple(
            WorkerRecord(number=each.number, pid=each.pid, state="idle") for each in workers
        ),
        "clients": tuple(
            ClientRecord(name=each.name, account=each.account, dataset=each.dataset)
            for each in clients
        ),
    }
    empty = NodeRecord(**(first | (before or {})))
    now = replace(
        empty,
        clock_s=empty.clock_s + seconds,
        uptime_s=empty.uptime_s + seconds,
        workers=workers,
        clients=clients,
        **totals,
    )
    return NodeReport(number=number, state=state, restarts=restarts, now=now, before=empty)


def report(*nodes: NodeReport, cpus: int = 8, busy_cpus: float = 0.0, **load: Any) -> HostReport:
    """A host; ``load`` are totals of its machine."""
    before = HostLoad(clock_s=CLOCK_S, usable_cpus=float(cpus), cpus=cpus)
    now = replace(before, clock_s=CLOCK_S + SECONDS, busy_s=busy_cpus * SECONDS, **load)
    return HostReport(
        host="feed-03",
        feeder_version="0.1.0",
        pid=4000,
        clock_s=now.clock_s,
        uptime_s=11_520.0,
        datasets=(IMAGENET,),
        nodes=nodes,
        load=now,
        load_before=before,
        verdict=Verdict(kind="starting", text="", is_problem=False),
    )


HEALTHY: Final = "healthy: 8 workers are busy 60 %, client waits 0 % of its time"


def trainer(
    name: str = "feed-03 pid 4711 rank 0",
    *,
    images_a_s: float = 1000.0,
    wait_share: float | None = 0.0,
    is_lent: bool = True,
    **fields: Any,
) -> ClientRecord:
    """A client at one node process; with a ``wait_share`` of None it reports no waits."""
    images = round(images_a_s * SECONDS)
    usual = {
        "account": "uid 1000",
        "dataset": "imagenet",
        "is_lent": is_lent,
        "is_local": is_lent,
        "window": 8,
        "wanted": 6,
        "images": images,
        "batches": images // BATCH_IMAGES,
        "sent_bytes": 0 if is_lent else images * IMAGE_BYTES,
        "worker_s": images * 0.005,
        "waited_s": (wait_share or 0.0) * SECONDS,
        "clock_s": 0.0 if wait_share is None else SECONDS,
        "cpu_s": 0.0 if wait_share is None else 0.4 * SECONDS,
        "slots": SlotSeconds(free=10.0, filling=40.0, client=30.0),
    }
    return client(name, **(usual | fields))


def host_report(
    text: str = HEALTHY,
    *,
    nodes: int = 1,
    workers: int = 8,
    clients: Sequence[ClientRecord] = (trainer(),),
    busy: float = 0.6,
    estimate_images_a_s: float = 0.0,
    load: Mapping[str, Any] | None = None,
    **totals: Any,
) -> HostReport:
    """A daemon on a host, with ``text`` as its verdict.

    Each node process has so many workers, all of these clients, and these totals. ``busy`` is the
    share of the workers' time in chunks; ``load`` are totals of the machine.
    """
    cpus, kind = nodes * workers, text.partition(":")[0]
    usual = {
        "cpus": cpus,
        "busy_cpus": cpus * busy * CPU_SHARE + 0.3,  # other programs'
        "usable_cpus": float(cpus),
        "io_wait_s": 0.02,
        "pressure_cpu_s": 0.4,
        "pressure_io_s": 0.1,
        "free_memory_bytes": 23_400_000_000,
    }
    made = [_node(number, workers, tuple(clients), busy, totals) for number in range(nodes)]
    verdict = Verdict(
        kind=kind,  # type: ignore[arg-type]
        text=text,
        is_problem=kind not in ("healthy", "idle", "starting", "packing"),
        estimate_images_a_s=estimate_images_a_s,
    )
    host = report(*made, **(usual | (load or {})))
    images_a_s = nodes * sum(client.images for client in clients) / SECONDS
    return replace(host, verdict=verdict, history=_history(images_a_s, busy))


def _node(
    number: int,
    workers: int,
    clients: tuple[ClientRecord, ...],
    busy: float,
    totals: Mapping[str, Any],
) -> NodeReport:
    images = sum(client.images for client in clients)
    lent = sum(client.images for client in clients if client.is_lent)
    first = number * workers
    each = {
        "state": "busy" if busy else "idle",
        "images": images // workers,
        "busy_s": busy * SECONDS,
        "cpu_s": busy * SECONDS * CPU_SHARE,
        "run_delay_s": busy * SECONDS * 0.02,
        "read_bytes": 1_100 * images // workers,  # of that, storage had to deliver 1 %
        "requested_bytes": 110_000 * images // workers,
    }
    histogram = [0] * 5 + [images // 32] + [0] * (len(BOUNDS_S) - 5)
    usual = {
        "images": images,
        "batches": images // BATCH_IMAGES,
        "sent_bytes": (images - lent) * IMAGE_BYTES,
        "lent_bytes": lent * IMAGE_BYTES,
        "stages": {stage: share * busy * SECONDS * workers for stage, share in STAGES.items()},
        "slots": merged([SlotSeconds(), *(client.slots for client in clients)]),
        "chunks_in_flight": round(busy * workers),
        "own_cpu_s": 1.1,
        "chunk_s": Histogram(counts=histogram, total_s=0.03 * sum(histogram)),
        "batch_s": Histogram(counts=histogram, total_s=0.2 * sum(histogram)),
        "counters": {"sessions_opened": 3, "decoder": "own (avx512)"},
    }
    return node(
        number,
        workers=tuple(
            worker(index, pid=5000 + 300 * number + index, cpu=first + index, **each)
            for index in range(workers)
        ),
        clients=clients,
        before={
            "name": f"feed-03/{number}",
            "pid": 4001 + number,
            "endpoints": (f"tcp://127.0.0.1:{5555 + number}",),
        },
        **(usual | totals),
    )


def _history(images_a_s: float, busy: float) -> tuple[HistoryPoint, ...]:
    """Points of five seconds, with a slow wave, so that a curve has a shape."""
    waves = [0.85 + 0.15 * math.sin(index / 6) for index in range(60)]
    return tuple(
        HistoryPoint(
            clock_s=CLOCK_S + SECONDS - 5.0 * (59 - index),
            images_a_s=images_a_s * wave,
            busy_share=busy * wave,
            wait_share=0.3 * wave,
        )
        for index, wave in enumerate(waves)
    )


def healthy() -> HostReport:
    """A worker pool with room, a local client that never waits."""
    return host_report()


def compute_bound() -> HostReport:
    """All workers decode all the time, and two clients wait."""
    clients = [
        trainer(f"feed-03 pid {pid} rank {rank}", images_a_s=1500.0, wait_share=0.31)
        for rank, pid in enumerate((4711, 4712))
    ]
    return host_report(
        "compute-bound: decode takes 68 % of 8 busy workers, clients wait 31 % of their "
        "time; 4 more cores would give about 4,500 images/s (estimate)",
        clients=clients,
        busy=0.99,
        estimate_images_a_s=4500.0,
        queued_batches=9,
    )


def store(**totals: Any) -> dict[str, StoreRecord]:
    """The fields of a report with a fetcher whose record has these totals at the end."""
    usual: dict[str, Any] = {
        "pid": 4090,
        "clock_s": CLOCK_S + SECONDS,
        "fetched_bytes": 3_800_000_000,
        "requests": 950,
        "transfers": 8,
        "used_bytes": 12_000_000_000,
        "budget_bytes": 40_000_000_000,
    }
    record = StoreRecord(**(usual | totals))
    return {"store": record, "store_before": StoreRecord(pid=record.pid, clock_s=CLOCK_S)}


def fetches(warm: int, cold: int, wait_s: float) -> Histogram:
    """Batches that found their samples on disk, and those that waited for them."""
    counts = [warm, *[0] * (len(BOUNDS_S) - 1), cold]
    return Histogram(counts=counts, total_s=cold * wait_s)


def store_bound() -> HostReport:
    """A store that throttles, credentials that are not renewed, and a disk cache that is small."""
    host = host_report(
        "store-bound: 5.4 batches wait for samples from the store at 380 MB/s and 95 requests/s, 8 "
        "transfers in flight, repeated: throttled 9, reset 1, the client waits 40 % of its time, 8 "
        "workers are busy 36 %; `feeder cache fetch` before the job would give about 1,000 "
        "images/s (estimate), else a faster network or store, a larger cache.disk_bytes or more "
        "feeders",
        clients=[trainer(images_a_s=600.0, wait_share=0.4)],
        busy=0.36,
        estimate_images_a_s=1000.0,
        fetch_s=fetches(7, 16, 3.375),
        fetching_batches=6,
    )
    fields = store(
        retries={"throttled": 9, "reset": 1, "credentials": 2},
        failures={"denied": 3},
        used_bytes=39_900_000_000,
        full_bytes=140_000_000_000,
        evicted_bytes=1_200_000_000,
        expires_in_s=240.0,
    )
    return replace(host, **fields)


def silent_worker() -> HostReport:
    """One of two workers was stopped."""
    stopped = worker(
        1, pid=5001, cpu=1, state="silent", silent_s=6.9, kernel_state="stopped", busy_s=SECONDS
    )
    host = host_report(
        "silent-worker: worker 1 (pid 5001, stopped by a signal) of node process 0 has made no "
        "progress for 6.9 s; it is replaced at its chunk's deadline",
        workers=2,
        clients=[trainer(images_a_s=135.0, wait_share=0.92)],
    )
    (process,) = host.nodes
    assert process.now is not None
    now = replace(process.now, workers=(process.now.workers[0], stopped))
    return replace(host, nodes=(replace(process, now=now),))


def many_nodes() -> HostReport:
    """Eight node processes of 32 workers, and eight clients, each fed by all of them."""
    clients = [
        trainer(
            f"gpu-{rank // 4} pid {90_000 + rank} rank {rank}",
            account=f"10.0.0.{rank // 4}",
            images_a_s=450.0,
            wait_share=0.001,
            is_lent=False,
        )
        for rank in range(8)
    ]
    return host_report(
        "healthy: 28,800 images/s, clients wait 0.8 % of their time, 256 workers are busy "
        "71 %; they could make about 41,000 images/s (estimate)",
        nodes=8,
        workers=32,
        clients=clients,
        busy=0.71,
        estimate_images_a_s=41_000.0,
    )


def no_clients() -> HostReport:
    """Nobody is connected."""
    return host_report("idle: no client is connected", clients=(), busy=0.0)


def restarting_node() -> HostReport:
    """One of two node processes hung and is being restarted, for the third time."""
    host = host_report(
        "node-down: node process 1 is restarting, 3 restarts so far, 1 of 2 serve; its last "
        "messages are in the daemon's log",
        nodes=2,
        worker_restarts=1,
    )
    down = NodeReport(number=1, state="restarting", restarts=3)
    warnings = ("placement: NUMA node 1 has no memory; its workers read from node 0",)
    return replace(host, nodes=(host.nodes[0], down), warnings=warnings)


def many_clients() -> HostReport:
    """A list of clients that is longer than any screen, summed up at its end; one takes most."""
    clients = [
        trainer(
            f"notebook-{rank % 5} pid {7000 + rank}",
            account=f"key team-{rank % 5}",
            dataset="imagenet" if rank % 3 else "places365-challenge-train",
            images_a_s=3000.0 if rank == 0 else 20.0 + rank,
            wait_share=None if rank % 7 == 3 else 0.02 * (rank % 4),
            is_lent=rank % 2 == 0,
        )
        for rank in range(64)
    ]
    others = trainer(OTHERS, account="", dataset="", images_a_s=75.0, wait_share=None)
    places = replace(
        IMAGENET,
        name="places365-challenge-train",
        samples=8_026_628,
        classes=365,
        folder="/srv/nfs/a folder with a very long name/for places365/packed with tiles of 32 px",
    )
    cache = CacheRecord(
        budget_bytes=20_000_000_000,
        used_bytes=12_000_000_000,
        full_bytes=140_000_000_000,
        hits=45_000,
        misses=55_000,
        fills=5_000,
    )
    host = host_report(workers=16, clients=[*clients, others], busy=0.88, cache=cache)
    return replace(host, datasets=(IMAGENET, places))


def just_started() -> HostReport:
    """One snapshot so far, so nothing has a rate."""
    host = host_report("starting: rates are known in a few seconds", clients=(), busy=0.0)
    nodes = (replace(host.nodes[0], before=None),)
    return replace(host, nodes=nodes, load_before=host.load, uptime_s=0.4, history=())


def packing() -> HostReport:
    """There are no node processes yet."""
    host = host_report("packing: packing imagenet, 34 %, 5 min left", nodes=0, clients=())
    return replace(host, datasets=(), uptime_s=0.4, history=())


REPORTS: Final[Mapping[str, Callable[[], HostReport]]] = {
    "healthy": host_report,
    "compute_bound": compute_bound,
    "store_bound": store_bound,
    "silent_worker": silent_worker,
    "many_nodes": many_nodes,
    "no_clients": no_clients,
    "restarting_node": restarting_node,
    "many_clients": many_clients,
    "just_started": just_started,
    "packing": packing,
}
