"""``feeder preview``: draws a contact sheet of a dataset's crops or of a served batch."""

import argparse
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.key_options import add_key_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feeder.cli.contact_sheet import Note
    from feeder.plan.labels import LabelRows
    from feeder.plan.recipe import Recipe
    from feeder.wire.messages import Welcome

_BATCH_SIZE = 256
_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preview:
    """What a sheet shows of n samples."""

    pictures: "NDArray[np.uint8]"
    """(n, height, width, 3)."""
    labels: list[str]
    notes: "list[Note]"
    subtitles: tuple[str, str]
    """The recipe, and what the notes mean."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "preview",
        help="draw a contact sheet of crops or of a served batch",
        description="Draw the first images of a batch as the model will see them but not "
        "normalised, each with its label, its sample id, the size of its crop and the operations "
        "that were applied to it. The batch is of the dataset DST or, with --from, served by a "
        "daemon.",
    )
    parser.add_argument("dataset_path", type=Path, nargs="?", metavar="DST", help="packed dataset")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("preview.png"),
        metavar="FILE",
        help="PNG to write (default: preview.png)",
    )
    parser.add_argument("--images", type=int, default=24, metavar="N", help="how many (default 24)")
    parser.add_argument("--split", choices=("train", "val"), default="train")
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="PX", help="side of a crop (default 224)"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="B",
        help=f"rows of a batch (default {_BATCH_SIZE}, or all samples where there are fewer)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of order and crops (default 0)")
    parser.add_argument("--epoch", type=int, default=0, help="(default 0)")
    parser.add_argument("--index", type=int, default=0, help="of the batch (default 0)")
    parser.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another field of the recipe, e.g. auto_augment=rand-augment, brightness=0.4 or "
        "scale=[0.3,1]; may be repeated",
    )
    parser.add_argument(
        "--boxes", action="store_true", help="draw whole images with the crops' outlines instead"
    )
    parser.add_argument(
        "--from", dest="endpoint", metavar="ENDPOINT", help="fetch the batch from this daemon"
    )
    parser.add_argument("--dataset", metavar="NAME", help="with --from: the dataset's name there")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_DEADLINE_S,
        metavar="S",
        help=f"with --from: seconds for the whole command (default: {_DEADLINE_S:g})",
    )
    add_key_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw the sheet and print its path."""
    from feeder.cli.contact_sheet import draw_contact_sheet
    from feeder.errors import ConfigError
    from feeder.survey.numbers import plural

    for name, least in (("images", 1), ("epoch", 0), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} {getattr(arguments, name)} is not {least} or more")
    if not 0 < arguments.timeout <= 3600:
        raise ConfigError(f"--timeout {arguments.timeout:g}: it must be above 0, up to 3600 s")
    if arguments.endpoint is None:
        if arguments.dataset_path is None:
            raise ConfigError("give a packed dataset, or --from ENDPOINT --dataset NAME")
        if arguments.dataset is not None:
            raise ConfigError("--dataset goes with --from; a packed dataset is named by its folder")
        preview = _preview_dataset(arguments)
        source = arguments.dataset_path.resolve().name
    else:
        if arguments.dataset is None or arguments.dataset_path is not None:
            raise ConfigError("--from needs the dataset's name: give --dataset NAME and no DST")
        if arguments.boxes:
            raise ConfigError("--boxes needs the whole images: preview the packed dataset instead")
        preview = _preview_served(arguments)
        source = f"{arguments.dataset} at {arguments.endpoint}"
    title = (
        f"{source}: {arguments.split}, seed {arguments.seed}, epoch {arguments.epoch}, "
        f"batch {arguments.index}"
    )
    draw_contact_sheet(
        preview.pictures,
        preview.labels,
        arguments.out,
        title=title,
        subtitles=preview.subtitles,
        notes=preview.notes,
    )
    print(f"{plural(len(preview.pictures), 'image')} in {arguments.out}")
    return 0


def _preview_dataset(arguments: argparse.Namespace) -> _Preview:
    """Return the sheet of a batch of a packed dataset."""
    from feeder.cli.crop_preview import draw_boxes, draw_crops, note_boxes, note_crops
    from feeder.cli.sample_notes import LEGEND, LEGEND_BOXES, describe_recipe
    from feeder.dataset.opened import Dataset

    with Dataset.open(arguments.dataset_path) as dataset:
        recipe = _recipe(arguments, dataset.layout.samples)
        plan = recipe.plan_epoch(dataset.layout, seed=arguments.seed, epoch=arguments.epoch)
        _check_index(arguments.index, plan.batches, recipe)
        count = min(arguments.images, plan.valid(arguments.index))
        sample_ids = plan.samples(arguments.index, 0, count)
        key = {"seed": arguments.seed, "epoch": arguments.epoch}
        draw, note, legend = draw_crops, note_crops, LEGEND
        if arguments.boxes:
            draw, note, legend = draw_boxes, note_boxes, LEGEND_BOXES
        pictures, labels = draw(dataset, recipe, sample_ids, **key)
        return _Preview(
            pictures=pictures,
            labels=labels,
            notes=note(dataset, recipe, sample_ids, **key),
            subtitles=(describe_recipe(recipe), legend),
        )


def _preview_served(arguments: argparse.Namespace) -> _Preview:
    """Return the sheet of a batch that the daemon at ``--from`` serves."""
    from feeder.cli.sample_notes import LEGEND_SERVED, describe_recipe, note_samples
    from feeder.client.core.links import Job
    from feeder.client.core.prefetch import BatchSequence
    from feeder.client.core.session import ClientSession
    from feeder.client.endpoints import Directory
    from feeder.client.transport import Transport
    from feeder.plan.packing import pixel_layout_of, unpack_levels
    from feeder.process.name_lookup import resolve_endpoint
    from feeder.security.keys import read_client_keys
    from feeder.wire.messages import Hello

    deadline_s = time.monotonic() + arguments.timeout
    recipe = _recipe(arguments, None)
    keys = read_client_keys(arguments.server_key, arguments.client_key)
    hello = Hello(
        dataset=arguments.dataset,
        recipe=recipe,
        seed=arguments.seed,
        window=1,
        client="feeder preview",
    )
    session = ClientSession(Job(name=arguments.endpoint, hello=hello), buffers=1)
    resolve_endpoint(arguments.endpoint, arguments.timeout)  # whose error names the name server
    with closing(Transport(session, Directory(arguments.endpoint, keys), keys)) as transport:
        welcome = transport.wait_for_welcome(deadline_s - time.monotonic(), for_packing=False)
        _check_index(arguments.index, welcome.batches, recipe)
        # With one buffer, which stays with this batch, no other one is requested.
        transport.begin(BatchSequence(arguments.epoch, range(arguments.index, arguments.index + 1)))
        key = arguments.epoch, arguments.index
        batch = transport.take(key, deadline_s - time.monotonic())
        rows, count = transport.rows(batch), min(arguments.images, batch.valid)
        return _Preview(
            pictures=unpack_levels(rows.pixels[:count], pixel_layout_of(recipe.packing)),
            labels=_name_labels(welcome, rows.labels[:count], arguments),
            notes=note_samples(
                recipe,
                seed=arguments.seed,
                epoch=arguments.epoch,
                sample_ids=rows.sample_ids[:count].copy(),
            ),
            subtitles=(describe_recipe(recipe), LEGEND_SERVED),
        )


def _name_labels(welcome: "Welcome", rows: "LabelRows", arguments: argparse.Namespace) -> list[str]:
    from feeder.cli.captions import name_labels
    from feeder.errors import ProtocolError

    if welcome.labels.kind == "index":
        unknown = [label for label in rows.tolist() if not 0 <= label < len(welcome.classes)]
        if unknown:
            raise ProtocolError(
                f"{arguments.endpoint} breaks the protocol: it sent the label {unknown[0]} of "
                f"{len(welcome.classes)} classes"
            )
    return name_labels(welcome.labels, rows, welcome.classes)


def _recipe(arguments: argparse.Namespace, samples: int | None) -> "Recipe":
    from feeder.errors import ConfigError
    from feeder.plan.recipe import Recipe, parse_field

    batch_size = arguments.batch_size
    if batch_size is None:
        batch_size = _BATCH_SIZE if samples is None else min(_BATCH_SIZE, samples)
    overrides: dict[str, object] = {}
    if arguments.split == "val":  # the usual margin around the centre crop, at any size
        overrides["resize_size"] = round(arguments.image_size * 256 / 224)
    for text in arguments.recipe:
        name, value = parse_field(text)
        if name in ("split", "batch_size", "image_size"):
            raise ConfigError(f"--recipe {name}: use --{name.replace('_', '-')} for that")
        overrides[name] = value
    return Recipe.for_split(
        arguments.split, batch_size=batch_size, image_size=arguments.image_size, **overrides
    )


def _check_index(index: int, batches: int, recipe: "Recipe") -> None:
    from feeder.errors import ConfigError

    if batches == 0:
        raise ConfigError(
            f"the dataset has fewer samples than one batch of {recipe.batch_size}: use a smaller "
            "--batch-size"
        )
    if not 0 <= index < batches:
        raise ConfigError(f"--index {index} is not within the epoch's batches 0 .. {batches - 1}")
