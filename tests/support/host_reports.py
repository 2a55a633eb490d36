"""Made-up reports of hosts, in which the given totals grew from zero in ten seconds.

``worker``, ``client``, ``node`` and ``report`` make any; a ``HostShape`` is a plausible host, whose
rates and shares come out as the shape says. ``REPORTS`` has such reports by name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from feeder.metrics.records import (
    BOUNDS_S,
    OTHERS,
    CacheRecord,
    ClientRecord,
    Histogram,
    NodeRecord,
    SlotSeconds,
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
    now = msgspec.structs.replace(
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
    now = msgspec.structs.replace(
        before, clock_s=CLOCK_S + SECONDS, busy_s=busy_cpus * SECONDS, **load
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientShape:
    """A client, the same at each node process; rates are of one node process."""

    name: str
    account: str = "uid 1000"
    dataset: str = "imagenet"
    job: str = ""
    images_a_s: float = 1000.0
    wait_share: float | None = 0.0
    """Of the client's time, for this node process; None: it reports no waits."""
    is_lent: bool = True
    is_local: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """A daemon on a host; rates and shares are of each node process over the interval."""

    nodes: int = 1
    workers: int = 8
    """Of each node process."""
    clients: Sequence[ClientShape] = (ClientShape(name="feed-03 pid 4711 rank 0"),)
    busy: float = 0.6
    """Share of the workers' time in chunks."""
    cache_hits: float = 0.0
    """Share of the decoded cache's look-ups; 0: no cache."""
    silent: int | None = None
    """A worker that was stopped 6.9 s ago."""
    restarting: int | None = None
    """A node process that restarts, for the third time."""
    usable_cpus: float | None = None
    throttled_cpus: float = 0.0
    """CPUs on which a quota keeps threads from running, on average."""
    queued_batches: int = 0
    counters: Mapping[str, int | float | str] = field(
        default_factory=lambda: {"sessions_opened": 3, "decoder": "own (avx512)"}
    )


HEALTHY: Final = "healthy: 8 workers are busy 60 %, client waits 0 % of its time"


def host_report(
    shape: HostShape, text: str = HEALTHY, estimate_images_a_s: float = 0.0, **changed: Any
) -> HostReport:
    """Return the report of a host; ``changed`` replaces fields of it."""
    cpus, kind = shape.nodes * shape.workers, text.partition(":")[0]
    ready = shape.nodes - (shape.restarting is not None)
    host = report(
        *(_node(shape, number) for number in range(shape.nodes)),
        cpus=cpus,
        busy_cpus=ready * shape.workers * shape.busy * CPU_SHARE + 0.3,  # other programs'
        usable_cpus=float(cpus) if shape.usable_cpus is None else shape.usable_cpus,
        throttled_s=shape.throttled_cpus * SECONDS,
        io_wait_s=0.02,
        pressure_cpu_s=0.4,
        pressure_io_s=0.1,
        free_memory_bytes=23_400_000_000,
    )
    verdict = Verdict(
        kind=kind,  # type: ignore[arg-type]
        text=text,
        is_problem=kind not in ("healthy", "idle", "starting", "packing"),
        estimate_images_a_s=estimate_images_a_s,
    )
    usual = {"verdict": verdict, "history": _history(shape, ready)}
    return msgspec.structs.replace(host, **(usual | changed))


def _node(shape: HostShape, number: int) -> NodeReport:
    if number == shape.restarting:
        return NodeReport(number=number, state="restarting", restarts=3)
    rate = sum(client.images_a_s for client in shape.clients)
    lent = sum(client.images_a_s for client in shape.clients if client.is_lent)
    images, busy_s = round(rate * SECONDS), shape.busy * SECONDS * shape.workers
    looked_up = images if shape.cache_hits else 0
    histogram = [0] * 5 + [images // 32] + [0] * (len(BOUNDS_S) - 5)
    return node(
        number,
        workers=tuple(_worker(shape, number, index, rate) for index in range(shape.workers)),
        clients=tuple(_client(each, rate, busy_s) for each in shape.clients),
        before={
            "name": f"feed-03/{number}",
            "pid": 4001 + number,
            "endpoints": (f"tcp://127.0.0.1:{5555 + number}",),
            "cpus": f"{number * shape.workers}-{(number + 1) * shape.workers - 1}",
            "memory_bytes_a_s": 20e9,
        },
        images=images,
        batches=images // BATCH_IMAGES,
        sent_bytes=round((rate - lent) * IMAGE_BYTES * SECONDS),
        lent_bytes=round(lent * IMAGE_BYTES * SECONDS),
        stages={stage: share * busy_s for stage, share in STAGES.items()},
        decoded_bytes=round(images * (1 - shape.cache_hits) * 400_000),
        slots=_slots(len(shape.clients)),
        queued_batches=shape.queued_batches,
        chunks_in_flight=round(shape.busy * shape.workers),
        cache=CacheRecord(
            budget_bytes=20_000_000_000 if looked_up else 0,
            used_bytes=12_000_000_000 if looked_up else 0,
            full_bytes=140_000_000_000 if looked_up else 0,
            hits=round(looked_up * shape.cache_hits),
            misses=round(looked_up * (1 - shape.cache_hits)),
            fills=round(0.1 * looked_up * (1 - shape.cache_hits)),
        ),
        worker_restarts=int(shape.restarting is not None),
        own_cpu_s=1.1,
        chunk_s=Histogram(counts=histogram, total_s=0.03 * sum(histogram)),
        batch_s=Histogram(counts=histogram, total_s=0.2 * sum(histogram)),
        counters=dict(shape.counters),
    )


def _worker(shape: HostShape, node: int, index: int, images_a_s: float) -> WorkerRecord:
    is_silent = index == shape.silent
    busy_s = SECONDS * (1.0 if is_silent else shape.busy)
    images = 0 if is_silent else round(images_a_s / shape.workers * SECONDS)
    return worker(
        index,
        pid=5000 + 300 * node + index,
        state="silent" if is_silent else "busy" if shape.busy else "idle",
        silent_s=6.9 if is_silent else 0.0,
        kernel_state="stopped" if is_silent else None,
        cpu=node * shape.workers + index,
        chunks=images // 32,
        images=images,
        busy_s=busy_s,
        cpu_s=0.0 if is_silent else busy_s * CPU_SHARE,
        run_delay_s=busy_s * 0.02,
        read_bytes=1_100 * images,  # of that, storage had to deliver 1 %
        requested_bytes=110_000 * images,
    )


def _client(shape: ClientShape, images_a_s: float, busy_s: float) -> ClientRecord:
    images = round(shape.images_a_s * SECONDS)
    reports = shape.wait_share is not None
    return client(
        shape.name,
        account=shape.account,
        dataset=shape.dataset,
        job=shape.job,
        is_lent=shape.is_lent,
        is_local=shape.is_local,
        window=8,
        wanted=6,
        images=images,
        batches=images // BATCH_IMAGES,
        sent_bytes=0 if shape.is_lent else images * IMAGE_BYTES,
        worker_s=shape.images_a_s / images_a_s * busy_s if images_a_s else 0.0,
        waited_s=(shape.wait_share or 0.0) * SECONDS,
        clock_s=SECONDS * reports,
        cpu_s=0.4 * SECONDS * reports,
        slots=_slots(1),
    )


def _slots(clients: int) -> SlotSeconds:
    return SlotSeconds(free=10.0 * clients, filling=40.0 * clients, client=30.0 * clients)


def _history(shape: HostShape, ready: int) -> tuple[HistoryPoint, ...]:
    """Points of five seconds, with a slow wave, so that a curve has a shape."""
    rate = ready * sum(client.images_a_s for client in shape.clients)
    waits = [client.wait_share for client in shape.clients if client.wait_share is not None]
    wait = min(1.0, ready * sum(waits) / len(waits)) if waits else 0.0
    waves = [0.85 + 0.15 * math.sin(index / 6) for index in range(60)]
    return tuple(
        HistoryPoint(
            clock_s=CLOCK_S + SECONDS - 5.0 * (59 - index),
            images_a_s=rate * wave,
            busy_share=shape.busy * wave,
            wait_share=wait * wave,
        )
        for index, wave in enumerate(waves)
    )


def healthy() -> HostReport:
    """A worker pool with room, a local client that never waits."""
    return host_report(HostShape())


def compute_bound() -> HostReport:
    """All workers decode all the time, and two clients wait."""
    clients = [
        ClientShape(name=f"feed-03 pid {pid} rank {rank}", images_a_s=1500.0, wait_share=0.31)
        for rank, pid in enumerate((4711, 4712))
    ]
    return host_report(
        HostShape(clients=clients, busy=0.99, queued_batches=9),
        "compute-bound: decode takes 68 % of 8 busy workers, clients wait 31 % of their "
        "time; 4 more cores would give about 4,500 images/s (estimate)",
        4500.0,
    )


def silent_worker() -> HostReport:
    """One of two workers was stopped."""
    slow = ClientShape(name="feed-03 pid 4711 rank 0", images_a_s=135.0, wait_share=0.92)
    return host_report(
        HostShape(workers=2, silent=1, clients=[slow]),
        "silent-worker: worker 1 (pid 5001, stopped by a signal) of node process 0 has made no "
        "progress for 6.9 s; it is replaced at its chunk's deadline",
    )


def many_nodes() -> HostReport:
    """Eight node processes of 32 workers, and eight clients, each fed by all of them."""
    clients = [
        ClientShape(
            name=f"gpu-{rank // 4} pid {90_000 + rank} rank {rank}",
            account=f"10.0.0.{rank // 4}",
            images_a_s=450.0,
            wait_share=0.001,
            is_lent=False,
            is_local=False,
        )
        for rank in range(8)
    ]
    return host_report(
        HostShape(nodes=8, workers=32, clients=clients, busy=0.71),
        "healthy: 28,800 images/s, clients wait 0.8 % of their time, 256 workers are busy "
        "71 %; they could make about 41,000 images/s (estimate)",
        41_000.0,
    )


def no_clients() -> HostReport:
    """Nobody is connected."""
    return host_report(HostShape(clients=(), busy=0.0), "idle: no client is connected")


def restarting_node() -> HostReport:
    """One of two node processes hung and is being restarted, for the third time."""
    return host_report(
        HostShape(nodes=2, restarting=1),
        "node-down: node process 1 is restarting, 3 restarts so far, 1 of 2 serve; its last "
        "messages are in the daemon's log",
        warnings=("placement: NUMA node 1 has no memory; its workers read from node 0",),
    )


def many_clients() -> HostReport:
    """A list of clients that is longer than any screen, summed up at its end; one takes most."""
    clients = [
        ClientShape(
            name=f"notebook-{rank % 5} pid {7000 + rank}",
            account=f"key team-{rank % 5}",
            dataset="imagenet" if rank % 3 else "places365-challenge-train",
            images_a_s=3000.0 if rank == 0 else 20.0 + rank,
            wait_share=None if rank % 7 == 3 else 0.02 * (rank % 4),
            is_lent=rank % 2 == 0,
            is_local=rank % 2 == 0,
        )
        for rank in range(64)
    ]
    others = ClientShape(name=OTHERS, account="", dataset="", images_a_s=75.0, wait_share=None)
    places = msgspec.structs.replace(
        IMAGENET,
        name="places365-challenge-train",
        samples=8_026_628,
        classes=365,
        folder="/srv/nfs/a folder with a very long name/for places365/packed with tiles of 32 px",
    )
    shape = HostShape(workers=16, clients=[*clients, others], busy=0.88, cache_hits=0.45)
    return host_report(shape, datasets=(IMAGENET, places))


def just_started() -> HostReport:
    """One snapshot so far, so nothing has a rate."""
    host = host_report(
        HostShape(clients=(), busy=0.0),
        "starting: rates are known in a few seconds",
        uptime_s=0.4,
        history=(),
    )
    nodes = (msgspec.structs.replace(host.nodes[0], before=None),)
    return msgspec.structs.replace(host, nodes=nodes, load_before=host.load)


def packing() -> HostReport:
    """There are no node processes yet."""
    return host_report(
        HostShape(nodes=0, clients=()),
        "packing: packing imagenet, 34 %, 5 min left",
        datasets=(),
        uptime_s=0.4,
        history=(),
    )


REPORTS: Final[Mapping[str, Callable[[], HostReport]]] = {
    each.__name__: each
    for each in (
        healthy,
        compute_bound,
        silent_worker,
        many_nodes,
        no_clients,
        restarting_node,
        many_clients,
        just_started,
        packing,
    )
}
