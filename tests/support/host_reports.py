"""Made-up reports of hosts, as a supervisor would send them: plausible, and the same every time.

``HostShape`` has what sets one host apart from another; ``host_report`` makes the two snapshots of
each node process from it, so that rates and shares over the interval come out as the shape says.
``REPORTS`` has the reports by name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
    NodeState,
    ServedDatasetReport,
    Verdict,
)

CLOCK_S: Final = 50_000.0
INTERVAL_S: Final = 10.0
IMAGE_BYTES: Final = 224 * 224 * 3
JPEG_BYTES: Final = 110_000
BATCH_IMAGES: Final = 256
STAGES: Final[Mapping[str, float]] = {
    "read": 0.05,
    "join": 0.0,
    "decode": 0.68,
    "resize": 0.19,
    "augment": 0.04,
    "fill": 0.0,
}
"""Shares of the workers' time in chunks; the rest is in no stage."""

CPU_SHARE: Final = 0.97
"""Of the time in chunks: on a CPU."""

STORAGE_SHARE: Final = 0.01
"""Of the bytes read: those that storage had to deliver."""

IMAGENET: Final = ServedDatasetReport(
    name="imagenet",
    samples=1_281_167,
    classes=1000,
    content="8c1f0a52d3b94e67",
    fingerprint="5e20b7719ac4d386",
    folder="/data/imagenet-packed",
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
    silent: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Seconds of silence, by node process and worker."""
    states: Mapping[int, NodeState] = field(default_factory=dict)
    """Of node processes that are not ready; those that restart or start have no snapshot."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    worker_restarts: int = 0
    usable_cpus: float | None = None
    throttled_cpus: float = 0.0
    """CPUs on which a quota keeps threads from running, on average."""
    warnings: Sequence[str] = ()
    minutes: float = 5.0
    """Of history."""
    queued_batches: int = 0
    counters: Mapping[str, int | float | str] = field(
        default_factory=lambda: {"sessions_opened": 3, "decoder": "own (avx512)"}
    )


HEALTHY: Final = Verdict(
    kind="healthy",
    text="healthy: 8 workers are busy 60 %, client waits 0 % of its time",
    is_problem=False,
)


def host_report(shape: HostShape, verdict: Verdict = HEALTHY, **changed: Any) -> HostReport:
    """Return the report of a host; ``changed`` replaces fields of it."""
    cpus = shape.nodes * shape.workers
    ready = [number for number in range(shape.nodes) if _state(shape, number) == "ready"]
    busy_cpus = len(ready) * shape.workers * shape.busy * CPU_SHARE + 0.3  # other programs'
    usable = shape.usable_cpus if shape.usable_cpus is not None else float(cpus)

    def load(clock_s: float) -> HostLoad:
        return HostLoad(
            clock_s=clock_s,
            usable_cpus=usable,
            cpus=cpus,
            busy_s=busy_cpus * clock_s,
            io_wait_s=0.002 * clock_s,
            throttled_s=shape.throttled_cpus * clock_s,
            pressure_cpu_s=0.04 * clock_s,
            pressure_io_s=0.01 * clock_s,
            free_memory_bytes=23_400_000_000,
        )

    report = {
        "host": "feed-03",
        "feeder_version": "0.1.0",
        "pid": 4000,
        "clock_s": CLOCK_S,
        "uptime_s": 11_520.0,
        "datasets": (IMAGENET,),
        "nodes": tuple(_node_report(shape, number) for number in range(shape.nodes)),
        "load": load(CLOCK_S),
        "load_before": load(CLOCK_S - INTERVAL_S),
        "verdict": verdict,
        "history": _history(shape, len(ready)),
        "warnings": tuple(shape.warnings),
    }
    return HostReport(**{**report, **changed})


def _state(shape: HostShape, number: int) -> NodeState:
    return shape.states.get(number, "ready")


def _node_report(shape: HostShape, number: int) -> NodeReport:
    state, restarts = _state(shape, number), shape.restarts.get(number, 0)
    if state in ("starting", "restarting"):
        return NodeReport(number=number, state=state, restarts=restarts)
    return NodeReport(
        number=number,
        state=state,
        restarts=restarts,
        now=node_snapshot(shape, number, CLOCK_S),
        before=node_snapshot(shape, number, CLOCK_S - INTERVAL_S),
    )


def node_snapshot(shape: HostShape, number: int, clock_s: float) -> NodeRecord:
    """Return a node process's snapshot at a time of its clock; it started at CLOCK_S - 1000."""
    up_s = clock_s - (CLOCK_S - 1000.0)
    rate = sum(client.images_a_s for client in shape.clients)
    images = round(rate * up_s)
    lent = sum(client.images_a_s for client in shape.clients if client.is_lent)
    busy_s = shape.busy * up_s
    workers = tuple(_worker(shape, number, index, up_s, rate) for index in range(shape.workers))
    looked_up = rate * up_s if shape.cache_hits else 0.0
    counts = [0] * (len(BOUNDS_S) + 1)
    counts[5] = images // 32
    return NodeRecord(
        number=number,
        name=f"feed-03/{number}",
        pid=4001 + number,
        clock_s=clock_s,
        uptime_s=up_s,
        endpoints=(f"tcp://127.0.0.1:{5555 + number}",),
        cpus=f"{number * shape.workers}-{(number + 1) * shape.workers - 1}",
        workers=workers,
        clients=tuple(
            _client(client, up_s, rate, busy_s * len(workers)) for client in shape.clients
        ),
        images=images,
        batches=images // BATCH_IMAGES,
        sent_bytes=round((rate - lent) * IMAGE_BYTES * up_s),
        lent_bytes=round(lent * IMAGE_BYTES * up_s),
        stages={stage: share * busy_s * len(workers) for stage, share in STAGES.items()},
        decoded_bytes=round(rate * (1 - shape.cache_hits) * 400_000 * up_s),
        memory_bytes_a_s=20e9,
        slots=_slots(len(shape.clients), up_s),
        queued_batches=shape.queued_batches,
        chunks_in_flight=round(shape.busy * shape.workers),
        cache=CacheRecord(
            budget_bytes=20_000_000_000 if shape.cache_hits else 0,
            used_bytes=12_000_000_000 if shape.cache_hits else 0,
            full_bytes=140_000_000_000 if shape.cache_hits else 0,
            hits=round(looked_up * shape.cache_hits),
            misses=round(looked_up * (1 - shape.cache_hits)),
            fills=round(0.1 * looked_up * (1 - shape.cache_hits)),
        ),
        worker_restarts=shape.worker_restarts,
        own_cpu_s=0.11 * up_s,
        chunk_s=Histogram(counts=counts, total_s=0.03 * sum(counts)),
        batch_s=Histogram(counts=counts, total_s=0.2 * sum(counts)),
        counters=dict(shape.counters),
    )


def _worker(
    shape: HostShape, node: int, index: int, up_s: float, images_a_s: float
) -> WorkerRecord:
    silent_s = shape.silent.get((node, index), 0.0)
    busy = 1.0 if silent_s else shape.busy
    cpu = 0.0 if silent_s else CPU_SHARE
    # A silent worker made progress before the interval.
    images = images_a_s / shape.workers * (up_s if not silent_s else 500.0)
    requested = images * JPEG_BYTES
    return WorkerRecord(
        number=index,
        pid=5000 + 300 * node + index,
        state="silent" if silent_s else "busy" if shape.busy > 0.02 else "idle",
        silent_s=silent_s,
        kernel_state="stopped" if silent_s else None,
        cpu=node * shape.workers + index,
        chunks=round(images / 32),
        images=round(images),
        busy_s=busy * up_s,
        cpu_s=busy * cpu * up_s,
        run_delay_s=busy * 0.02 * up_s,
        read_bytes=round(requested * STORAGE_SHARE),
        requested_bytes=round(requested),
    )


def _client(client: ClientShape, up_s: float, images_a_s: float, busy_s: float) -> ClientRecord:
    images = round(client.images_a_s * up_s)
    share = client.images_a_s / images_a_s if images_a_s else 0.0
    return ClientRecord(
        name=client.name,
        account=client.account,
        dataset=client.dataset,
        job=client.job,
        is_lent=client.is_lent,
        is_local=client.is_local,
        window=8,
        wanted=6,
        images=images,
        batches=images // BATCH_IMAGES,
        sent_bytes=0 if client.is_lent else images * IMAGE_BYTES,
        worker_s=share * busy_s,
        waited_s=0.0 if client.wait_share is None else client.wait_share * up_s,
        clock_s=0.0 if client.wait_share is None else up_s,
        cpu_s=0.0 if client.wait_share is None else 0.4 * up_s,
        slots=_slots(1, up_s),
    )


def _slots(clients: int, up_s: float) -> SlotSeconds:
    return SlotSeconds(free=clients * up_s, filling=4 * clients * up_s, client=3 * clients * up_s)


def _history(shape: HostShape, ready: int) -> tuple[HistoryPoint, ...]:
    """Points of five seconds, with a slow wave, so that a curve has a shape."""
    rate = ready * sum(client.images_a_s for client in shape.clients)
    waits = [client.wait_share for client in shape.clients if client.wait_share is not None]
    wait = min(1.0, ready * sum(waits) / len(waits)) if waits else 0.0
    count = round(shape.minutes * 60 / 5)
    waves = [0.85 + 0.15 * math.sin(index / 6) for index in range(count)]
    return tuple(
        HistoryPoint(
            clock_s=CLOCK_S - 5.0 * (count - 1 - index),
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
    shape = HostShape(clients=clients, busy=0.99, queued_batches=9)
    verdict = Verdict(
        kind="compute-bound",
        text="compute-bound: decode takes 68 % of 8 busy workers, clients wait 31 % of their "
        "time; 4 more cores would give about 4,500 images/s (estimate)",
        is_problem=True,
        estimate_images_a_s=4500.0,
    )
    return host_report(shape, verdict)


def silent_worker() -> HostReport:
    """One of two workers was stopped."""
    shape = HostShape(
        workers=2,
        silent={(0, 1): 6.9},
        clients=[ClientShape(name="feed-03 pid 4711 rank 0", images_a_s=135.0, wait_share=0.92)],
    )
    verdict = Verdict(
        kind="silent-worker",
        text="silent-worker: worker 1 (pid 5001, stopped by a signal) of node process 0 has made "
        "no progress for 6.9 s; it is replaced at its chunk's deadline, the log says what it was "
        "doing",
        is_problem=True,
    )
    return host_report(shape, verdict)


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
    verdict = Verdict(
        kind="healthy",
        text="healthy: 28,800 images/s, clients wait 0.8 % of their time, 256 workers are busy "
        "71 %; they could make about 41,000 images/s (estimate)",
        is_problem=False,
        estimate_images_a_s=41_000.0,
    )
    return host_report(HostShape(nodes=8, workers=32, clients=clients, busy=0.71), verdict)


def no_clients() -> HostReport:
    """Nobody is connected."""
    verdict = Verdict(kind="idle", text="idle: no client is connected", is_problem=False)
    return host_report(HostShape(clients=(), busy=0.0), verdict)


def restarting_node() -> HostReport:
    """One of two node processes hung and is being restarted, for the third time."""
    shape = HostShape(
        nodes=2,
        states={1: "restarting"},
        restarts={1: 3},
        worker_restarts=1,
        warnings=["placement: NUMA node 1 has no memory; its workers read from node 0"],
    )
    verdict = Verdict(
        kind="node-down",
        text="node-down: node process 1 is restarting, 3 restarts so far, 1 of 2 serve; its last "
        "messages are in the daemon's log",
        is_problem=True,
    )
    return host_report(shape, verdict)


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
    clients.append(
        ClientShape(name=OTHERS, account="", dataset="", images_a_s=75.0, wait_share=None)
    )
    places = ServedDatasetReport(
        name="places365-challenge-train",
        samples=8_026_628,
        classes=365,
        content="17a9",
        fingerprint="b3c0",
        folder="/srv/nfs/a folder with a very long name/for places365/packed with tiles of 32 px",
    )
    return host_report(
        HostShape(workers=16, clients=clients, busy=0.88, cache_hits=0.45),
        datasets=(IMAGENET, places),
    )


def just_started() -> HostReport:
    """One snapshot so far, so nothing has a rate."""
    report = host_report(HostShape(clients=(), busy=0.0, minutes=0.0))
    (node,) = report.nodes
    return host_report(
        HostShape(clients=(), busy=0.0, minutes=0.0),
        Verdict(
            kind="starting", text="starting: rates are known in a few seconds", is_problem=False
        ),
        nodes=(NodeReport(number=0, state="ready", now=node.now),),
        load_before=report.load,
        uptime_s=0.4,
    )


def packing() -> HostReport:
    """There are no node processes yet."""
    text = "packing imagenet, 34 %, 5 min left"
    verdict = Verdict(kind="packing", text=text, is_problem=False)
    shape = HostShape(clients=(), busy=0.0, minutes=0.0)
    return host_report(shape, verdict, nodes=(), datasets=(), uptime_s=0.4)


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
