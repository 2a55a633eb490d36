"""Decides whether a Hello becomes a session, and on which terms: pure functions.

A refusal is one line that names the field, the limit and the remedy. A window that does not fit
into memory is reduced, to no less than one batch.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.remedies import more_files, more_memory
from feeder.wire.messages import MAX_NODE_HEADER_BYTES, Hello, RefusedCode, Welcome
from feeder.wire.slot_layout import SlotLayout

SESSION_CHUNKS_MAX: Final = 16_384
"""Chunks of a session that can be queued for sending; the socket's high-water mark is above it."""

_CHUNK_PIXELS: Final = 32 * 512**2
"""Most pixels of a chunk: the default 32 images at 512 px."""

_CHUNK_LABEL_BYTES: Final = MAX_NODE_HEADER_BYTES // 2
"""Most bytes of a chunk's labels; clients accept frames of MAX_NODE_HEADER_BYTES at least."""

MEMORIES_A_SESSION: Final = 2
"""A client that is stopped or slow may still map the slots of an ended session when the next one
begins, so as many ended sessions fit as open ones."""

MESSAGE_CHARS_MAX: Final = 4096
"""Longest text that the wire takes in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDataset:
    """The facts about a dataset that sessions need."""

    fingerprint: str
    classes: tuple[str, ...]
    layout: ShardLayout
    labels: LabelSpec = INDEX_LABELS
    loss: str = ""
    """What its images lost by choice when it was packed; empty if nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """A node process's limits on sessions, from the configuration."""

    sessions_max: int
    window_max: int
    chunk_images: int
    """At most: see ``count_chunk_images``."""
    slots_bytes: int
    """Budget of slot memory over all sessions."""
    lease_s: float
    """A session ends after this long without a message of its client."""
    memories_max: int = sys.maxsize
    """Sessions with slots, ended ones included: MEMORIES_A_SESSION × sessions_max, or fewer if
    descriptors are short."""
    recipes_max: int = sys.maxsize
    """Different recipes in use at a time."""
    client_sessions_max: int = sys.maxsize
    """This and the next two are per client, which means per account (``MessageReceived``)."""
    client_slots_bytes: int = sys.maxsize
    client_recipes_max: int = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is in use when a Hello arrives, in all or by one client."""

    sessions: int = 0
    memories: int = 0
    """Sessions with slots, including ended ones that are still lent."""
    slots_bytes: int = 0
    """Memory of ended sessions that is still lent included."""
    recipes: frozenset[tuple[str, Recipe]] = frozenset()
    """Those of open sessions, each with its dataset's name."""


NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """How this node process presents itself in a Welcome, field by field."""

    node: str
    number: int
    incarnation: int
    siblings: tuple[tuple[str, ...], ...]
    feeder_version: str
    self_test: str
    libraries: Mapping[str, str]
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Admission:
    """The terms of a session."""

    plan: EpochPlan
    """Of epoch 0; the number of batches and their sizes are the same in every epoch."""
    layout: SlotLayout
    chunk_images: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason, for the client's user."""

    code: RefusedCode
    message: str


def admit(
    hello: Hello,
    datasets: Mapping[str, ServedDataset | str],
    limits: SessionLimits,
    *,
    is_draining: bool,
    used: Usage,
    available_bytes: int,
    account: str = "",
    used_by_client: Usage = NOTHING,
) -> Admission | Refusal:
    """Decide about a Hello, given what is in use in all and by the client (``account``, as people
    know it), and the memory that cgroup and machine have available.

    A dataset that cannot be served has the reason in its place in ``datasets``."""
    if is_draining:
        return Refusal("draining", "this feeder is shutting down: use another one, or try later")
    dataset = datasets.get(hello.dataset)
    if dataset is None:
        served = ", ".join(sorted(datasets)) or "none"
        return Refusal("unknown-dataset", f"no dataset {hello.dataset!r} here; served: {served}")
    if isinstance(dataset, str):
        return Refusal("dataset", dataset[:MESSAGE_CHARS_MAX])
    if used.sessions >= limits.sessions_max:
        most = limits.sessions_max
        return Refusal("clients", f"all {most} sessions are taken: close one, raise clients_max")
    if used.memories >= limits.memories_max:
        return _refuse_memories(limits)
    refusal = _refusal_for_client(hello, limits, used, account, used_by_client)
    if refusal is not None:
        return refusal
    plan = _plan(hello, dataset)
    if isinstance(plan, Refusal):
        return plan
    layout = _grant(hello, dataset.labels, limits, used, available_bytes, account, used_by_client)
    if isinstance(layout, Refusal):
        return layout
    return Admission(plan, layout, count_chunk_images(hello.recipe, dataset.labels, limits))


def count_chunk_images(recipe: Recipe, labels: LabelSpec, limits: SessionLimits) -> int:
    """Return how many images a chunk of a recipe holds: fewer if they or their labels are large.

    A worker must finish a chunk long before its deadline, and other sessions wait meanwhile: 32
    images of 2048 px with all augmentations take half a minute.
    """
    most = min(_CHUNK_PIXELS // recipe.image_size**2, _CHUNK_LABEL_BYTES // labels.row_bytes)
    return max(1, min(limits.chunk_images, most))


def compose_welcome(
    session: int,
    hello: Hello,
    dataset: ServedDataset,
    *,
    plan: EpochPlan,
    window: int,
    chunk_images: int,
    identity: NodeIdentity,
) -> Welcome:
    """Return the answer to an admitted Hello."""
    return Welcome(
        session=session,
        dataset=hello.dataset,
        fingerprint=dataset.fingerprint,
        recipe_fingerprint=hello.recipe.fingerprint(),
        classes=dataset.classes,
        labels=dataset.labels,
        samples=dataset.layout.samples,
        batches=plan.batches,
        shards=dataset.layout.shards,
        lanes=plan.lanes,
        window=window,
        chunk_images=chunk_images,
        workers=identity.workers,
        node=identity.node,
        number=identity.number,
        incarnation=identity.incarnation,
        siblings=identity.siblings,
        feeder_version=identity.feeder_version,
        self_test=identity.self_test,
        libraries=dict(identity.libraries),
    )


def _refuse_memories(limits: SessionLimits) -> Refusal:
    """Return the refusal over ``memories_max``, with the limit to raise."""
    most = limits.memories_max
    if most < MEMORIES_A_SESSION * limits.sessions_max:
        return Refusal(
            "clients",
            f"all {most} sessions that the feeder has open files for are taken: close one, or "
            f"{more_files()}",
        )
    return Refusal(
        "clients",
        f"all {most} sessions are taken, counting ended ones whose slots a client still maps: end "
        "such clients, or raise clients_max",
    )


def _plan(hello: Hello, dataset: ServedDataset) -> EpochPlan | Refusal:
    recipe = hello.recipe
    try:
        plan = recipe.plan_epoch(dataset.layout, seed=hello.seed, epoch=0)
    except ConfigError as error:
        return Refusal("bad-recipe", str(error))
    if plan.batches == 0:
        return Refusal(
            "bad-recipe",
            f"batch_size {recipe.batch_size} is larger than dataset {hello.dataset!r}, which has "
            f"{dataset.layout.samples} samples: use at most that many, or "
            f"last_batch={LastBatch.PAD.value!r}",
        )
    return plan


def _refusal_for_client(
    hello: Hello, limits: SessionLimits, used: Usage, account: str, used_by_client: Usage
) -> Refusal | None:
    """Return the refusal if a limit on sessions or recipes would be exceeded, or None."""
    if used_by_client.sessions >= limits.client_sessions_max:
        return Refusal(
            "clients",
            f"client {account!r} has {used_by_client.sessions} sessions, the most for one client: "
            "close one, or raise client_sessions_max",
        )
    recipe = hello.dataset, hello.recipe
    if len(used.recipes | {recipe}) > limits.recipes_max:
        return Refusal(
            "recipes",
            f"{len(used.recipes)} different recipes are in use, the most at a time: use one of "
            "them, or raise recipes_max",
        )
    if len(used_by_client.recipes | {recipe}) > limits.client_recipes_max:
        return Refusal(
            "recipes",
            f"client {account!r} uses {len(used_by_client.recipes)} different recipes, the most "
            "for one client: close sessions, or raise client_recipes_max",
        )
    return None


def _grant(
    hello: Hello,
    labels: LabelSpec,
    limits: SessionLimits,
    used: Usage,
    available_bytes: int,
    account: str,
    used_by_client: Usage,
) -> SlotLayout | Refusal:
    """Return the slots that the session gets: fewer than it asks for if memory is short."""
    recipe = hello.recipe
    one = SlotLayout.of_recipe(recipe, labels, slots=1)
    chunks = -(-recipe.batch_size // count_chunk_images(recipe, labels, limits))
    remaining_bytes = limits.slots_bytes - used.slots_bytes
    client_remaining_bytes = limits.client_slots_bytes - used_by_client.slots_bytes
    window = min(
        hello.window,
        limits.window_max,
        min(remaining_bytes, client_remaining_bytes, available_bytes) // one.slot_bytes,
        max(1, SESSION_CHUNKS_MAX // chunks),
    )
    need = f"one batch needs {one.slot_bytes / 1e6:.1f} MB of slot memory"
    if remaining_bytes < one.slot_bytes:
        return Refusal(
            "memory",
            f"{need}, {max(remaining_bytes, 0) / 1e6:.1f} MB remain of "
            f"{limits.slots_bytes / 1e6:.1f} MB: close other sessions, use smaller batches, or "
            "raise slots_bytes",
        )
    if client_remaining_bytes < one.slot_bytes:
        return Refusal(
            "memory",
            f"{need}, client {account!r} has {max(client_remaining_bytes, 0) / 1e6:.1f} MB left of "
            f"its {limits.client_slots_bytes / 1e6:.1f} MB: close its other sessions, use "
            "smaller batches, or raise client_slots_bytes",
        )
    if window < 1:
        return Refusal(
            "memory",
            f"{need}, the feeder has {available_bytes / 1e6:.1f} MB available: use smaller "
            f"batches, or {more_memory(one.slot_bytes - available_bytes)}",
        )
    return SlotLayout.of_recipe(recipe, labels, slots=window)
