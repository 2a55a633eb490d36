"""Whether a node's answers fit what was requested, and whether it makes the same bytes as others.

``wire.messages`` bounds each message on its own; these checks know the recipe, the dataset and the
request. What passes them can be stored as it is. Everything else is a ProtocolError, so that a node
that breaks the protocol is named at once, and none of its rows lands in a wrong place.
"""

from collections.abc import Sequence

from feeder.errors import ConfigError, DatasetError, ProtocolError
from feeder.plan.epoch import LastBatch
from feeder.plan.labels import LabelSpec
from feeder.plan.lanes import resolve_shape
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.agreement import Producer, find_disagreement
from feeder.wire.messages import BatchKey, Chunk, Hello, Welcome


def name_batch(key: BatchKey) -> str:
    """Name a batch in a message."""
    return f"batch {key[1]} of epoch {key[0]}"


def check_chunk(
    recipe: Recipe, labels: LabelSpec, chunk: Chunk, sizes: Sequence[int], *, valid: int
) -> None:
    """Raise ProtocolError unless a chunk with frames of ``sizes`` bytes can be one of its batch, of
    which ``valid`` rows are real."""
    rows, pixels = chunk.images, pixel_layout_of(recipe.packing)
    crop_sizes = recipe.at(chunk.epoch).crop_sizes
    crops = [rows * pixels.image_bytes(size) for size in crop_sizes]
    expected = (*crops, rows * labels.row_bytes, rows * 8)
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


def check_welcome(hello: Hello, first: Welcome | None, welcome: Welcome, *, is_back: bool) -> None:
    """Raise the error of a node whose ``welcome`` does not answer ``hello``, or that would make
    other bytes than the node of the ``first`` welcome; ``is_back``: it served this job before."""
    recipe, samples = hello.recipe, welcome.samples
    if welcome.dataset != hello.dataset:
        raise ProtocolError(
            f"it grants dataset {welcome.dataset!r}, {hello.dataset!r} was requested"
        )
    if welcome.window > hello.window:
        raise ProtocolError(
            f"it grants {welcome.window} batches at once, {hello.window} were requested"
        )
    fingerprint = recipe.fingerprint()
    if welcome.recipe_fingerprint != fingerprint:
        raise ProtocolError(
            f"feeder {welcome.feeder_version} there reads the recipe differently "
            f"({welcome.recipe_fingerprint}, here {fingerprint}); install the same version on both "
            "sides"
        )
    contradiction = welcome.labels.find_contradiction(len(welcome.classes))
    if contradiction is not None:
        raise ProtocolError(f"it describes no possible dataset: {contradiction}")
    padding = recipe.batch_size - 1 if recipe.last_batch == LastBatch.PAD else 0
    batches = (samples + padding) // recipe.batch_size
    resolved = welcome.working_set, welcome.piece
    is_resolved = isinstance(recipe.working_set, tuple)
    try:
        shape = resolve_shape(
            samples,
            order_batch_size=recipe.order_batch_size,
            shuffle=recipe.shuffle,
            lanes=recipe.lanes,
            working_set=recipe.working_set if is_resolved else resolved,
        )
    except ConfigError as error:
        raise ProtocolError(f"it describes no possible order: {error}") from error
    name = f"batches of {recipe.batch_size}"
    counts = (
        (name, welcome.batches, batches),
        ("lanes", welcome.lanes, shape.lanes),
        ("of them in the working set", welcome.working_set, shape.working_set),
    )
    for name, theirs, ours in counts:
        if theirs != ours:
            raise ProtocolError(
                f"it counts {theirs} {name} in {samples} samples, there are {ours}: install the "
                "same feeder version on both sides"
            )
    if first is None:
        return
    if welcome.content != first.content and is_back:
        raise DatasetError(
            f"dataset {hello.dataset!r} changed while the daemon restarted: its content "
            f"fingerprint is {welcome.content}, it was {first.content}; serve the old one or "
            "restart the job"
        )
    if welcome.content != first.content:
        raise DatasetError(
            f"dataset {hello.dataset!r} there is not the one of {first.node}: its content "
            f"fingerprint is {welcome.content}, not {first.content}; serve the same one everywhere"
        )
    if resolved != (first.working_set, first.piece):
        other, own = (f"{w.working_set} samples in pieces of {w.piece}" for w in (welcome, first))
        raise DatasetError(
            f"dataset {hello.dataset!r} there has other sizes than that of {first.node}, as if it "
            f"was packed differently, so that its order differs: a working set of {other}, not "
            f'{own}; pass recipe={{"working_set": [{first.working_set}, {first.piece}]}}, or serve '
            "copies of the same files"
        )
    if welcome.labels != first.labels:  # buffers are of the first one's
        other, own = (f"{w.labels.kind} of width {w.labels.width}" for w in (welcome, first))
        raise ProtocolError(
            f"its labels of dataset {hello.dataset!r} are {other}, those of {first.node} {own}, "
            "of the same content fingerprint"
        )
    producers = (Producer(w.node, w.self_test, w.libraries) for w in (first, welcome))
    disagreement = find_disagreement(*producers)
    if disagreement is not None:
        raise ProtocolError(f"{disagreement}; install the same ones on both")
