"""Decides whether a Hello becomes a session, and on which terms: pure functions.

A refusal is one line that names the field, the limit and the remedy. A window that does not fit
into memory is reduced, to no less than one batch.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.remedies import more_files, more_memory
from feeder.wire.messages import MAX_NODE_HEADER_BYTES, Hello, RefusedCode
from feeder.wire.slot_layout import SlotLayout

SESSION_CHUNKS_MAX: Final = 16_384
"""Chunks of a session that can be queued for sending; the socket's high-water mark is above it."""

_CHUNK_PIXELS: Final = 32 * 512**2
"""Most pixels of a chunk: 32 images of 512 px, or 167 of 224."""

_CHUNK_LABEL_BYTES: Final = MAX_NODE_HEADER_BYTES // 2
"""Most bytes of a chunk's labels; clients accept frames of MAX_NODE_HEADER_BYTES at least."""

MEMORIES_A_SESSION: Final = 2
"""A client that is stopped or slow may still map the slots of an ended session when the next one
begins, so as many ended sessions fit as open ones."""

MESSAGE_CHARS_MAX: Final = 4096
"""Longest text that the wire takes in a message."""


class HelloReceived(NamedTuple):
    """An event: a client's Hello arrived. If it is admitted, it becomes session ``number``."""

    number: int
    peer: bytes
    hello: Hello
    available_bytes: int
    """Memory that cgroup and machine have available for slots."""
    account: str = ""
    """What the session counts towards: the name of a key, a user of this machine, or an address."""
    is_local: bool = False
    """Whether the client runs on this machine."""
    is_ipc: bool = False
    """Whether it is connected over ipc, so that it could map the slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDataset:
    """The facts about a dataset that sessions need."""

    content: str
    """The manifest's."""
    classes: tuple[str, ...]
    layout: ShardLayout
    labels: LabelSpec = INDEX_LABELS
    store: str = ""
    """The URL from which pieces of its shards are fetched: batches wait for their samples. Empty
    for a dataset that is on this host."""
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
    """Sessions with slots, ended ones included: MEMORIES_A_SESSION × sessions_max, which never
    refuses one that ``sessions_max`` would not, or fewer if descriptors are short."""
    recipes_max: int = sys.maxsize
    """Different recipes in use at a time."""
    client_sessions_max: int = sys.maxsize
    """This and the next two are per client, which means per account (``HelloReceived``)."""
    client_slots_bytes: int = sys.maxsize
    client_recipes_max: int = sys.maxsize


@dataclass(slots=True, kw_only=True)
class Usage:
    """What the sessions of one client, or of all, use."""

    open: int = 0
    ended: int = 0
    """Those whose memory is not freed yet, as while a client still maps it."""
    slots_bytes: int = 0
    """The memory of open and ended sessions."""
    recipes: Counter[tuple[str, Recipe]] = field(default_factory=Counter)
    """Datasets' names and recipes of open sessions, with the number of these."""

    @property
    def sessions(self) -> int:
        """Ended sessions hold descriptors, so ``sessions_max`` bounds them as well."""
        return max(self.open, self.ended)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason, for the client's user."""

    code: RefusedCode
    message: str


def admit(
    arrival: HelloReceived,
    datasets: Mapping[str, ServedDataset | str],
    limits: SessionLimits,
    used: Usage,
    used_by_client: Usage,
) -> tuple[EpochPlan, SlotLayout, list[int]] | Refusal:
    """The plan of epoch 0, the slots and, by the recipe's phase, the rows of a chunk; or why there
    is no session.

    A dataset that cannot be served has the reason in its place in ``datasets``.
    """
    hello, available_bytes = arrival.hello, arrival.available_bytes
    dataset = datasets.get(hello.dataset)
    if dataset is None:
        served = ", ".join(sorted(datasets)) or "none"
        return Refusal("unknown-dataset", f"no dataset {hello.dataset!r} here; served: {served}")
    if isinstance(dataset, str):
        return Refusal("dataset", dataset[:MESSAGE_CHARS_MAX])
    refusal = _refusal_for_sessions(arrival, limits, used, used_by_client)
    if refusal is not None:
        return refusal
    plan = _plan(hello, dataset)
    if isinstance(plan, Refusal):
        return plan
    recipe = hello.recipe
    chunk_images = [
        count_chunk_images(each, dataset.labels, limits) for each in recipe.over_epochs()
    ]
    one = SlotLayout.of_recipe(recipe, dataset.labels, slots=1)
    remaining_bytes = limits.slots_bytes - used.slots_bytes
    client_remaining_bytes = limits.client_slots_bytes - used_by_client.slots_bytes
    window = min(
        hello.window,
        limits.window_max,
        min(remaining_bytes, client_remaining_bytes, available_bytes) // one.slot_bytes,
        max(1, SESSION_CHUNKS_MAX // -(-recipe.batch_size // min(chunk_images))),
    )
    if window >= 1:
        layout = SlotLayout.of_recipe(recipe, dataset.labels, slots=window)
        return plan, layout, chunk_images
    need = f"one batch needs {one.slot_bytes / 1e6:.1f} MB of slot memory"
    if remaining_bytes < one.slot_bytes:
        need += (
            f", {max(remaining_bytes, 0) / 1e6:.1f} MB remain of "
            f"{limits.slots_bytes / 1e6:.1f} MB: close other sessions, use smaller batches, or "
            "raise slots_bytes"
        )
    elif client_remaining_bytes < one.slot_bytes:
        need += (
            f", client {arrival.account!r} has {max(client_remaining_bytes, 0) / 1e6:.1f} MB left "
            f"of its {limits.client_slots_bytes / 1e6:.1f} MB: close its other sessions, use "
            "smaller batches, or raise client_slots_bytes"
        )
    else:
        need += (
            f", the feeder has {available_bytes / 1e6:.1f} MB available: use smaller "
            f"batches, or {more_memory(one.slot_bytes - available_bytes)}"
        )
    return Refusal("memory", need)


def count_chunk_images(recipe: Recipe, labels: LabelSpec, limits: SessionLimits) -> int:
    """Rows of a chunk of a recipe in force: fewer where they or their labels are large.

    A worker must finish a chunk long before its deadline, and other sessions wait meanwhile: 32
    images of 2048 px with all augmentations take half a minute.
    """
    row_pixels = sum(size**2 for size in recipe.crop_sizes)
    most = min(_CHUNK_PIXELS // row_pixels, _CHUNK_LABEL_BYTES // labels.row_bytes)
    return max(1, min(limits.chunk_images, most))


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


def _refusal_for_sessions(
    arrival: HelloReceived, limits: SessionLimits, used: Usage, used_by_client: Usage
) -> Refusal | None:
    account = arrival.account
    if used.sessions >= limits.sessions_max:
        most = limits.sessions_max
        return Refusal("clients", f"all {most} sessions are taken: close one, raise clients_max")
    most = limits.memories_max
    if used.open + used.ended >= most:
        return Refusal(
            "clients",
            f"all {most} sessions that the feeder has open files for are taken: close one, or "
            f"{more_files()}",
        )
    if used_by_client.sessions >= limits.client_sessions_max:
        return Refusal(
            "clients",
            f"client {account!r} has {used_by_client.sessions} sessions, the most for one client: "
            "close one, or raise client_sessions_max",
        )
    recipe = arrival.hello.dataset, arrival.hello.recipe
    if recipe not in used.recipes and len(used.recipes) >= limits.recipes_max:
        return Refusal(
            "recipes",
            f"{len(used.recipes)} different recipes are in use, the most at a time: use one of "
            "them, or raise recipes_max",
        )
    if (
        recipe not in used_by_client.recipes
        and len(used_by_client.recipes) >= limits.client_recipes_max
    ):
        return Refusal(
            "recipes",
            f"client {account!r} uses {len(used_by_client.recipes)} different recipes, the most "
            "for one client: close sessions, or raise client_recipes_max",
        )
    return None
