"""What the clients of a node process got between two of its snapshots."""

from dataclasses import dataclass

from feeder.diagnosis.rates import SHORTEST_S, growth, rates
from feeder.metrics.records import OTHERS, ClientRecord, NodeRecord, SlotSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInterval:
    """A client of one node process, or all others together."""

    name: str
    account: str
    dataset: str
    job: str
    clients: int
    """1, or how many others these are."""
    node: int
    is_lent: bool
    is_local: bool
    window: int
    wanted: int
    images_a_s: float
    bytes_a_s: float
    """Copied over the socket."""
    worker_share: float
    """Its part of the workers' time that was spent on all clients of the node process, 0 to 1."""
    wait_share: float | None
    """Share of the client's time in which its training loop waited for this node process, of others
    their mean; None where none has reported."""
    cpus: float
    """CPUs that its process used, on average; of others their sum."""
    slots: SlotSeconds
    """Mean number of its slots in each state."""


def client_intervals(
    before: NodeRecord, now: NodeRecord, seconds: float
) -> tuple[ClientInterval, ...]:
    """Return what each client of ``now`` got."""
    earlier = {_key(client): client for client in before.clients}
    pairs = [(_start(earlier.get(_key(client)), client), client) for client in now.clients]
    worker_s = sum(growth(start.worker_s, client.worker_s) for start, client in pairs)
    return tuple(
        _client_interval(start, client, node=now.number, seconds=seconds, worker_s=worker_s)
        for start, client in pairs
    )


def _start(before: ClientRecord | None, now: ClientRecord) -> ClientRecord:
    """Return the totals that ``now`` has grown from.

    A client that was not there before has begun at zero. What the others had done before is not
    known when they were not there, or were fewer.
    """
    if now.name == OTHERS and (before is None or before.images > now.images):
        return now
    return before or ClientRecord(
        name=now.name, account=now.account, dataset=now.dataset, is_lent=now.is_lent
    )


def _client_interval(
    start: ClientRecord, now: ClientRecord, *, node: int, seconds: float, worker_s: float
) -> ClientInterval:
    """``worker_s`` is the workers' time for all clients of the node process."""
    rate = rates(seconds)
    clock_s = growth(start.clock_s, now.clock_s)
    has_reported = clock_s >= SHORTEST_S
    waited_s, cpu_s = growth(start.waited_s, now.waited_s), growth(start.cpu_s, now.cpu_s)
    return ClientInterval(
        name=now.name,
        account=now.account,
        dataset=now.dataset,
        job=now.job,
        clients=now.clients,
        node=node,
        is_lent=now.is_lent,
        is_local=now.is_local,
        window=now.window,
        wanted=now.wanted,
        images_a_s=rate(start.images, now.images),
        bytes_a_s=rate(start.sent_bytes, now.sent_bytes),
        worker_share=growth(start.worker_s, now.worker_s) / worker_s if worker_s else 0.0,
        wait_share=min(1.0, waited_s / clock_s) if has_reported else None,
        cpus=now.clients * cpu_s / clock_s if has_reported else 0.0,
        slots=mean_slots(start.slots, now.slots, seconds),
    )


def mean_slots(before: SlotSeconds, now: SlotSeconds, seconds: float) -> SlotSeconds:
    """Return the mean number of slots in each state."""
    rate = rates(seconds)
    return SlotSeconds(
        free=rate(before.free, now.free),
        filling=rate(before.filling, now.filling),
        sending=rate(before.sending, now.sending),
        client=rate(before.client, now.client),
    )


def _key(client: ClientRecord) -> tuple[str, str, str]:
    return client.account, client.name, client.dataset
