"""Whether a node's message can be an answer to its client's request.

``messages`` bounds each message on its own; these checks know the recipe, the dataset and the
request. What passes them can be stored as it is. Everything else raises ProtocolError, so that a
node that breaks the protocol is named at once, and none of its rows lands in a wrong place.
"""

from collections.abc import Sequence

from feeder.errors import ConfigError, ProtocolError
from feeder.plan.epoch import LastBatch, ShardLayout
from feeder.plan.labels import LabelSpec
from feeder.plan.lanes import resolve_lanes
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Hello, Welcome


def name_batch(key: BatchKey) -> str:
    """Name a batch in a message."""
    return f"batch {key[1]} of epoch {key[0]}"


def count_valid(recipe: Recipe, samples: int, index: int) -> int:
    """Return how many rows of a batch are real; 0 once all samples are used up."""
    return max(0, min(recipe.batch_size, samples - index * recipe.batch_size))


def check_welcome(hello: Hello, welcome: Welcome) -> None:
    """Raise ProtocolError where a welcome does not answer ``hello``, or contradicts itself."""
    if welcome.dataset != hello.dataset:
        raise ProtocolError(
            f"it grants dataset {welcome.dataset!r}, {hello.dataset!r} was requested"
        )
    if welcome.window > hello.window:
        raise ProtocolError(
            f"it grants {welcome.window} batches at once, {hello.window} were requested"
        )
    ours, theirs = hello.recipe.fingerprint(), welcome.recipe_fingerprint
    if ours != theirs:
        raise ProtocolError(
            f"feeder {welcome.feeder_version} there reads the recipe differently "
            f"({theirs}, here {ours}); install the same version on both sides"
        )
    try:
        ShardLayout(samples=welcome.samples, shards=welcome.shards)
        recipe = hello.recipe
        lanes = resolve_lanes(recipe.lanes, welcome.samples, recipe.order_batch_size)
    except ConfigError as error:
        raise ProtocolError(f"it describes no possible dataset: {error}") from None
    contradiction = welcome.labels.find_contradiction(len(welcome.classes))
    if contradiction is not None:
        raise ProtocolError(f"it describes no possible dataset: {contradiction}")
    batch_size = hello.recipe.batch_size
    padding = batch_size - 1 if hello.recipe.last_batch == LastBatch.PAD else 0
    batches = (welcome.samples + padding) // batch_size
    if welcome.batches != batches:
        raise ProtocolError(
            f"it counts {welcome.batches} batches of {batch_size} in {welcome.samples} samples, "
            f"there are {batches}"
        )
    if welcome.lanes != lanes:
        raise ProtocolError(
            f"it counts {welcome.lanes} lanes in {welcome.samples} samples, there are {lanes}: "
            "install the same feeder version on both sides"
        )


def check_chunk(
    recipe: Recipe,
    labels: LabelSpec,
    chunk: Chunk,
    sizes: Sequence[int],
    *,
    valid: int,
) -> None:
    """Raise ProtocolError unless a chunk with frames of ``sizes`` bytes can be one of its batch.

    ``labels`` are the welcome's, ``valid`` how many rows of the batch are real.
    """
    rows = chunk.images
    if chunk.first + rows > recipe.batch_size:
        raise ProtocolError(
            f"{_name_chunk(chunk)} has {rows} rows from row {chunk.first}, the batch has "
            f"{recipe.batch_size} in all"
        )
    if chunk.valid != valid:
        raise ProtocolError(
            f"{_name_chunk(chunk)} counts {chunk.valid} real rows, it must be {valid}"
        )
    image_bytes = pixel_layout_of(recipe.packing).image_bytes(recipe.image_size)
    expected = (rows * image_bytes, rows * labels.row_bytes, rows * 8)
    if tuple(sizes) != expected:
        raise ProtocolError(
            f"{_name_chunk(chunk)} has frames of {tuple(sizes)} bytes, not of {expected}"
        )


def check_loan(key: BatchKey, valid: int, expected: int) -> None:
    """Raise ProtocolError unless a lent batch has as many real rows as it must have."""
    if valid != expected:
        raise ProtocolError(
            f"{name_batch(key)} was lent with {valid} real rows, it must have {expected}"
        )


def _name_chunk(chunk: Chunk) -> str:
    return f"a chunk of {name_batch((chunk.epoch, chunk.index))}"
