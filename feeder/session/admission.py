"""Whether a Hello becomes a session, and on which terms: pure functions of what is served and free.

A client is told no in one line that names the field, the limit and the way out. A window that is
larger than the room is granted smaller; one batch is the least.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.remedies import more_files, more_memory
from feeder.wire.messages import Hello, RefusedCode, Welcome
from feeder.wire.slot_layout import SlotLayout

SESSION_CHUNKS_MAX: Final = 16_384
"""Chunks that a session can have on their way; the socket's send mark lies above it."""

_CHUNK_PIXELS: Final = 32 * 512**2
"""Most of a chunk; as many as the configured images have by default, where they are usual ones."""

MEMORIES_A_SESSION: Final = 2
"""A client that is stopped, or slow to let go, maps the slots of a session that has ended while its
successor may have begun: there is room for as many of these as for sessions."""

MESSAGE_CHARS_MAX: Final = 4096
"""Longest text that the wire takes in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDataset:
    """What sessions need to know of a dataset."""

    fingerprint: str
    classes: tuple[str, ...]
    layout: ShardLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What clients may ask of this node process."""

    sessions_max: int
    window_max: int
    chunk_images: int
    """At most; ``count_chunk_images`` says how many of a recipe's."""
    slots_bytes: int
    """Budget of slot memory over all sessions."""
    lease_s: float
    """A session whose client is silent for so long ends."""
    chunk_deadline_s: float
    """A worker without progress for so long is ended and replaced."""
    memories_max: int = sys.maxsize
    """Sessions with slots, ended ones included: MEMORIES_A_SESSION × sessions_max, or what there
    are descriptors for."""
    recipes_max: int = sys.maxsize
    """Different recipes at a time."""
    client_sessions_max: int = sys.maxsize
    """Of all these, what one client may have: what counts as one is the account of an event."""
    client_slots_bytes: int = sys.maxsize
    client_recipes_max: int = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is in use when a Hello arrives, by everybody or by one client."""

    sessions: int = 0
    memories: int = 0
    """Sessions that have slots, ended ones whose slots are still lent included."""
    slots_bytes: int = 0
    """Memory of ended sessions that is still lent included."""
    recipes: frozenset[tuple[str, Recipe]] = frozenset()
    """Of open sessions, each with its dataset's name."""


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


@dataclass(frozen=True, slots=True)
class Admission:
    """The terms of a session."""

    plan: EpochPlan
    """Of epoch 0; how many batches there are and how full is the same in every epoch."""
    layout: SlotLayout
    chunk_images: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, for the client's user."""

    code: RefusedCode
    message: str


def admit(
    hello: Hello,
    datasets: Mapping[str, ServedDataset],
    limits: SessionLimits,
    *,
    is_draining: bool,
    used: Usage,
    available_bytes: int,
    account: str = "",
    used_by_client: Usage = NOTHING,
) -> Admission | Refusal:
    """Decide about a Hello, given what is in use in all, and by the client (whose name for people
    is ``account``), and what cgroup and machine have available."""
    if is_draining:
        return Refusal("draining", "this feeder is about to end: ask another one, or try later")
    dataset = datasets.get(hello.dataset)
    if dataset is None:
        served = ", ".join(sorted(datasets)) or "none"
        return Refusal("unknown-dataset", f"no dataset {hello.dataset!r} here; served: {served}")
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
    layout = _grant(hello, limits, used, available_bytes, account, used_by_client)
    if isinstance(layout, Refusal):
        return layout
    return Admission(plan, layout, count_chunk_images(hello.recipe, limits))


def count_chunk_images(recipe: Recipe, limits: SessionLimits) -> int:
    """Return how many images a chunk of a recipe holds: fewer where they are large.

    A worker must be done with a chunk long before its deadline, and others wait for it meanwhile:
    32 images of 2048 px with all augmentations take half a minute.
    """
    return max(1, min(limits.chunk_images, _CHUNK_PIXELS // recipe.image_size**2))


def compose_welcome(
    session: int,
    hello: Hello,
    dataset: ServedDataset,
    *,
    batches: int,
    window: int,
    chunk_images: int,
    identity: NodeIdentity,
) -> Welcome:
    """Return the answer to a Hello that was admitted."""
    return Welcome(
        session=session,
        dataset=hello.dataset,
        fingerprint=dataset.fingerprint,
        recipe_fingerprint=hello.recipe.fingerprint(),
        classes=dataset.classes,
        samples=dataset.layout.samples,
        batches=batches,
        shards=dataset.layout.shards,
        lanes=dataset.layout.lanes,
        window=window,
        chunk_images=chunk_images,
        node=identity.node,
        number=identity.number,
        incarnation=identity.incarnation,
        siblings=identity.siblings,
        feeder_version=identity.feeder_version,
        self_test=identity.self_test,
        libraries=dict(identity.libraries),
    )


def _refuse_memories(limits: SessionLimits) -> Refusal:
    """Refuse for sessions with slots, and name the limit that would let more of them in."""
    most = limits.memories_max
    if most < MEMORIES_A_SESSION * limits.sessions_max:
        return Refusal(
            "clients",
            f"all {most} sessions are taken that the feeder has open files for: close one, or "
            f"{more_files()}",
        )
    return Refusal(
        "clients",
        f"all {most} sessions are taken, with those that have ended and whose slots a client still "
        "maps: end such clients, or raise clients_max",
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
            f"{dataset.layout.samples} samples: ask for at most that many, or for "
            f"last_batch={LastBatch.PAD.value!r}",
        )
    return plan


def _refusal_for_client(
    hello: Hello, limits: SessionLimits, used: Usage, account: str, used_by_client: Usage
) -> Refusal | None:
    """Return which limit on sessions or recipes a client would be over, or None."""
    if used_by_client.sessions >= limits.client_sessions_max:
        return Refusal(
            "clients",
            f"client {account!r} has {used_by_client.sessions} sessions, as many as one may: close "
            "one, or raise client_sessions_max",
        )
    recipe = hello.dataset, hello.recipe
    if len(used.recipes | {recipe}) > limits.recipes_max:
        return Refusal(
            "recipes",
            f"{len(used.recipes)} different recipes are in use, as many as may be: use one of "
            "them, or raise recipes_max",
        )
    if len(used_by_client.recipes | {recipe}) > limits.client_recipes_max:
        return Refusal(
            "recipes",
            f"client {account!r} uses {len(used_by_client.recipes)} different recipes, as many as "
            "one may: close sessions, or raise client_recipes_max",
        )
    return None


def _grant(
    hello: Hello,
    limits: SessionLimits,
    used: Usage,
    available_bytes: int,
    account: str,
    used_by_client: Usage,
) -> SlotLayout | Refusal:
    """Return the slots that the session gets, fewer than it asks for where room is short."""
    recipe = hello.recipe
    one = SlotLayout.of_recipe(recipe, slots=1)
    chunks = -(-recipe.batch_size // count_chunk_images(recipe, limits))
    left_bytes = limits.slots_bytes - used.slots_bytes
    left_to_client_bytes = limits.client_slots_bytes - used_by_client.slots_bytes
    window = min(
        hello.window,
        limits.window_max,
        min(left_bytes, left_to_client_bytes, available_bytes) // one.slot_bytes,
        max(1, SESSION_CHUNKS_MAX // chunks),
    )
    need = f"one batch needs {one.slot_bytes / 1e6:.1f} MB of slot memory"
    if left_bytes < one.slot_bytes:
        return Refusal(
            "memory",
            f"{need}, {max(left_bytes, 0) / 1e6:.1f} MB are left of "
            f"{limits.slots_bytes / 1e6:.1f} MB: close other sessions, ask for smaller batches, or "
            "raise slots_bytes",
        )
    if left_to_client_bytes < one.slot_bytes:
        return Refusal(
            "memory",
            f"{need}, client {account!r} has {max(left_to_client_bytes, 0) / 1e6:.1f} MB left of "
            f"its {limits.client_slots_bytes / 1e6:.1f} MB: close its other sessions, ask for "
            "smaller batches, or raise client_slots_bytes",
        )
    if window < 1:
        return Refusal(
            "memory",
            f"{need}, the feeder has {available_bytes / 1e6:.1f} MB available: ask for smaller "
            f"batches, or {more_memory(one.slot_bytes - available_bytes)}",
        )
    return SlotLayout.of_recipe(recipe, slots=window)
