"""Whether a node's answers fit what was requested, and whether it makes the same bytes as others.

``wire.messages`` bounds each message on its own; these checks know the recipe, the dataset and the
request. What passes them can be stored as it is. Everything else is a ProtocolError, so that a node
that breaks the protocol is named at once, and none of its rows lands in a wrong place.
"""

from collections.abc import Sequence

from feeder.errors import ConfigError, DatasetError, FeederError, ProtocolError
from feeder.plan.epoch import LastBatch, ShardLayout
from feeder.plan.labels import LabelSpec
from feeder.plan.lanes import resolve_lanes
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.agreement import Producer, find_disagreement
from feeder.wire.messages import BatchKey, Chunk, Hello, Welcome


def name_batch(key: BatchKey) -> str:
    """Name a batch in a message."""
    return f"batch {key[1]} of epoch {key[0]}"


def count_valid(recipe: Recipe, samples: int, index: int) -> int:
    """Rows of a batch that are real; 0 once all samples are used up."""
    return max(0, min(recipe.batch_size, samples - index * recipe.batch_size))


def check_chunk(
    recipe: Recipe, labels: LabelSpec, chunk: Chunk, sizes: Sequence[int], *, valid: int
) -> None:
    """Raise ProtocolError unless a chunk with frames of ``sizes`` bytes can be one of its batch.

    ``labels`` are the welcome's, ``valid`` how many rows of the batch are real.
    """
    rows = chunk.images
    image_bytes = pixel_layout_of(recipe.packing).image_bytes(recipe.image_size)
    expected = (rows * image_bytes, rows * labels.row_bytes, rows * 8)
    name = f"a chunk of {name_batch((chunk.epoch, chunk.index))}"
    if chunk.first + rows > recipe.batch_size:
        raise ProtocolError(
            f"{name} has {rows} rows from row {chunk.first}, the batch has {recipe.batch_size} in "
            "all"
        )
    if tuple(sizes) != expected:
        raise ProtocolError(f"{name} has frames of {tuple(sizes)} bytes, not of {expected}")
    if chunk.valid != valid:
        raise ProtocolError(f"{name} counts {chunk.valid} real rows, it must be {valid}")


def find_incompatibility(
    hello: Hello, first: Welcome | None, welcome: Welcome, *, is_back: bool
) -> FeederError | None:
    """Why a node that answers ``hello`` with ``welcome`` would make other bytes, or None.

    ``first`` is the welcome that all must agree with; ``is_back``: the endpoint served this job
    before.
    """
    contradiction = _find_contradiction(hello, welcome)
    if contradiction is not None:
        return ProtocolError(contradiction)
    if first is None:
        return None
    if welcome.fingerprint != first.fingerprint:
        if is_back:
            return DatasetError(
                f"dataset {hello.dataset!r} changed while the daemon restarted: its fingerprint is "
                f"{welcome.fingerprint}, it was {first.fingerprint}; serve the old one or restart "
                "the job"
            )
        return DatasetError(
            f"dataset {hello.dataset!r} there is not the one of {first.node}: its fingerprint is "
            f"{welcome.fingerprint}, not {first.fingerprint}; serve the same one everywhere"
        )
    if welcome.labels != first.labels:  # buffers are of the first one's
        theirs, ours = (f"{w.labels.kind} of width {w.labels.width}" for w in (welcome, first))
        return ProtocolError(
            f"its labels of dataset {hello.dataset!r} are {theirs}, those of {first.node} {ours}, "
            "of the same fingerprint"
        )
    one, other = (Producer(w.node, w.self_test, w.libraries) for w in (first, welcome))
    disagreement = find_disagreement(one, other)
    if disagreement is not None:
        return ProtocolError(f"{disagreement}; install the same ones on both")
    return None


def _find_contradiction(hello: Hello, welcome: Welcome) -> str | None:
    """Where a welcome does not answer ``hello``, or contradicts itself."""
    recipe, samples = hello.recipe, welcome.samples
    if welcome.dataset != hello.dataset:
        return f"it grants dataset {welcome.dataset!r}, {hello.dataset!r} was requested"
    if welcome.window > hello.window:
        return f"it grants {welcome.window} batches at once, {hello.window} were requested"
    ours, theirs = recipe.fingerprint(), welcome.recipe_fingerprint
    if ours != theirs:
        return (
            f"feeder {welcome.feeder_version} there reads the recipe differently "
            f"({theirs}, here {ours}); install the same version on both sides"
        )
    try:
        ShardLayout(samples=samples, shards=welcome.shards)
        lanes = resolve_lanes(recipe.lanes, samples, recipe.order_batch_size)
    except ConfigError as error:
        return f"it describes no possible dataset: {error}"
    contradiction = welcome.labels.find_contradiction(len(welcome.classes))
    if contradiction is not None:
        return f"it describes no possible dataset: {contradiction}"
    padding = recipe.batch_size - 1 if recipe.last_batch == LastBatch.PAD else 0
    batches = (samples + padding) // recipe.batch_size
    if welcome.batches != batches:
        return (
            f"it counts {welcome.batches} batches of {recipe.batch_size} in {samples} samples, "
            f"there are {batches}"
        )
    if welcome.lanes != lanes:
        return (
            f"it counts {welcome.lanes} lanes in {samples} samples, there are {lanes}: install the "
            "same feeder version on both sides"
        )
    return None
