"""``feeder preview``: draws a contact sheet of a dataset's crops or of a served batch."""

import argparse
import contextlib
import json
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import (
    add_key_options,
    add_timeout_option,
    check_timeout,
    option,
    read_keys,
)
from feeder.dataset.files import local_folder, parse_location
from feeder.errors import ConfigError, PeerError, ProtocolError
from feeder.survey.numbers import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feeder.cli.contact_sheet import Note, Sizes
    from feeder.plan.recipe import Recipe

    _Sheet = tuple[Recipe, NDArray[np.uint8], list[str], list[Note]]
    """What is drawn: the pictures (n, height, width, 3) with their captions and notes."""

_BATCH_SIZE: Final = 256
_DEADLINE_S: Final = 30.0
_LEGEND: Final = "under each image: label; sample id"
_LEGEND_CROPS: Final = (
    f"{_LEGEND} and size of its crop in the original; what was done to the crop, in this order"
)
_LEGEND_BOXES: Final = (
    f"bright: the crop; {_LEGEND} and size of its crop in the original (mirroring and augmentation "
    "are not shown)"
)
_LEGEND_SERVED: Final = (
    f"{_LEGEND}; what was done to the crop, in this order (a feeder sends no sizes of originals, "
    "so those of the crops are missing)"
)

_IN_SENTENCE: Final = frozenset(
    {"split", "batch_size", "order_batch_size", "lanes", "working_set", "image_size", "crop"}
    | {"crops", "phases"}
    | {"scale", "ratio", "resize_size", "flip_probability", "interpolation"}
)
"""Fields that the title has, or that the recipe's line always states."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "preview",
        help="draw a contact sheet of crops or of a served batch",
        description="Draw the first images of a batch as the model will see them but not "
        "normalised, each with its label, its sample id, the size of its crop and the operations "
        "that were applied to it. The batch is of the dataset DST or, with --from, served by a "
        "daemon.",
    )
    parser.add_argument(
        "dataset_path", type=parse_location, nargs="?", metavar="DST", help="packed dataset"
    )
    option(
        parser,
        "--out FILE",
        "PNG to write (default: preview.png)",
        type=Path,
        default=Path("preview.png"),
    )
    option(parser, "--images N", "how many (default 24)", type=int, default=24)
    parser.add_argument("--split", choices=("train", "val"), default="train")
    option(
        parser,
        "--image-size PX",
        'side of a crop (default 224), also by epoch: \'{"0": 128, "30": 160}\'',
        type=_parse_size,
        default=224,
    )
    rows = f"rows of a batch (default {_BATCH_SIZE}, or all samples where there are fewer)"
    option(parser, "--batch-size B", rows, type=int)
    for name, text in (("seed", "of order and crops "), ("epoch", ""), ("index", "of the batch ")):
        option(parser, f"--{name}", f"{text}(default 0)", type=int, default=0)
    option(
        parser,
        "--recipe NAME=VALUE",
        "another field of the recipe, e.g. auto_augment=rand-augment, brightness=0.4 or "
        "scale=[0.3,1]; may be repeated",
        action="append",
        default=[],
    )
    option(parser, "--boxes", "draw whole images with the crops' outlines instead")
    option(parser, "--from ENDPOINT", "fetch the batch from this daemon", dest="endpoint")
    option(parser, "--dataset NAME", "with --from: the dataset's name there")
    add_timeout_option(parser, "with --from: seconds for the whole command", _DEADLINE_S)
    add_key_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from feeder.cli.contact_sheet import draw_contact_sheet

    for name, least in (("images", 1), ("epoch", 0), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} {getattr(arguments, name)} is not {least} or more")
    check_timeout(arguments)
    if arguments.endpoint is None:
        if arguments.dataset_path is None:
            raise ConfigError("give a packed dataset, or --from ENDPOINT --dataset NAME")
        if arguments.dataset is not None:
            raise ConfigError("--dataset goes with --from; a packed dataset is named by its folder")
        recipe, pictures, captions, notes = _preview_dataset(arguments)
        location = arguments.dataset_path
        folder = local_folder(location)
        source = str(location).rstrip("/") if folder is None else str(folder.resolve())
        source = source.rpartition("/")[2]
        legend = _LEGEND_BOXES if arguments.boxes else _LEGEND_CROPS
    else:
        if arguments.dataset is None or arguments.dataset_path is not None:
            raise ConfigError("--from needs the dataset's name: give --dataset NAME and no DST")
        if arguments.boxes:
            raise ConfigError("--boxes needs the whole images: preview the packed dataset instead")
        recipe, pictures, captions, notes = _preview_served(arguments)
        source = f"{arguments.dataset} at {arguments.endpoint}"
        legend = _LEGEND_SERVED
    draw_contact_sheet(
        pictures,
        captions,
        arguments.out,
        title=f"{source}: {arguments.split}, seed {arguments.seed}, epoch {arguments.epoch}, "
        f"batch {arguments.index}",
        subtitles=(describe_recipe(recipe), legend),
        notes=notes,
        together=len(recipe.crop_sizes),
    )
    print(f"{plural(len(pictures), 'image')} in {arguments.out}")
    return 0


def _preview_dataset(arguments: argparse.Namespace) -> "_Sheet":
    """Show crops of a dataset, or with ``--boxes`` whole images with the crops outlined."""
    import numpy as np

    from feeder.choose.members import open_samples
    from feeder.cli.contact_sheet import Note, beside_each_other, name_labels, outline_crops
    from feeder.dataset.opened import Dataset
    from feeder.plan.draws import DRAW_SHIFT, split_words
    from feeder.plan.packing import Pixels, pixel_layout_of, unpack_levels
    from feeder.sample.selected_reader import make_reader

    seed, epoch, index = arguments.seed, arguments.epoch, arguments.index
    with open_samples(arguments.dataset_path) as dataset:
        recipe = _recipe(arguments, dataset.layout.samples).at(epoch)
        plan = recipe.plan_epoch(dataset.layout, seed=seed, epoch=epoch)
        _check_index(index, plan.batches, recipe)
        count = min(_samples(arguments, recipe), plan.valid(index))
        ids, draws = split_words(plan.words(index, 0, count))
        records = dataset.read_records(ids)
        sizes = records["width"].astype(np.int64), records["height"].astype(np.int64)
        # All is drawn by the ids that samples have in their datasets.
        parts = [(dataset, ids, np.arange(len(ids)))] if isinstance(dataset, Dataset) else []
        if not isinstance(dataset, Dataset):
            groups = dataset.selection.locate(ids)
            parts = [(dataset.member(g.member), g.sample_ids, g.rows) for g in groups]
        words = draws << DRAW_SHIFT
        for _, part_ids, rows in parts:
            words[rows] += part_ids
        notes = _notes(recipe, ids, sizes, arguments, words)
        labels = np.empty((len(ids), *dataset.labels.row_shape), dataset.labels.dtype)
        if arguments.boxes:
            dataset.read_labels(ids, records, labels)
            crops = []
            for crop, one in enumerate(recipe.of_crops()):
                outlined: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(ids)
                for member, part_ids, rows in parts:
                    part_sizes, drawn = (sizes[0][rows], sizes[1][rows]), words[rows]
                    pictures = outline_crops(
                        member, one, part_ids, part_sizes, drawn, seed=seed, epoch=epoch, crop=crop
                    )
                    for row, picture in zip(rows.tolist(), pictures, strict=True):
                        outlined[row] = picture
                crops.append(np.stack(outlined))
            notes = [Note(note.facts) for note in notes]  # neither mirrored nor augmented
        else:
            layout = pixel_layout_of(recipe.packing)
            shapes = [(len(ids), *layout.image_shape(size)) for size in recipe.crop_sizes]
            pixels: list[Pixels] = [np.empty(shape, layout.dtype) for shape in shapes]
            make_reader(dataset, recipe).fill(
                ids,
                draws=draws,
                seed=seed,
                epoch=epoch,
                pixels=pixels[0],
                labels=labels,
                further=pixels[1:],
            )
            crops = [unpack_levels(each, layout) for each in pixels]
        captions = name_labels(dataset.labels, labels, dataset.classes)
        return recipe, beside_each_other(crops), _repeat(captions, len(crops)), notes


def _preview_served(arguments: argparse.Namespace) -> "_Sheet":
    """Show a batch that the daemon at ``--from`` serves."""
    import numpy as np

    from feeder.cli.contact_sheet import Note, beside_each_other, name_labels
    from feeder.client.core.links import Job
    from feeder.client.core.prefetch import BatchSequence
    from feeder.client.core.session import ClientSession
    from feeder.client.endpoints import Directory
    from feeder.client.stats import request_sources
    from feeder.client.transport import Transport
    from feeder.plan.packing import pixel_layout_of, unpack_levels
    from feeder.process.name_lookup import resolve_endpoint
    from feeder.wire.messages import Hello

    deadline_s = time.monotonic() + arguments.timeout
    endpoint, seed, epoch = arguments.endpoint, arguments.seed, arguments.epoch
    recipe = _recipe(arguments, _BATCH_SIZE)
    keys = read_keys(arguments)
    hello = Hello(
        dataset=arguments.dataset, recipe=recipe, seed=seed, window=1, client="feeder preview"
    )
    session = ClientSession(Job(name=endpoint, hello=hello), buffers=1)
    resolve_endpoint(endpoint, arguments.timeout)  # whose error names the name server
    with closing(Transport(session, Directory(endpoint, keys), keys)) as transport:
        welcome = transport.wait_for_welcome(deadline_s - time.monotonic(), for_packing=False)
        _check_index(arguments.index, welcome.batches, recipe)
        # With one buffer, which stays with this batch, no other one is requested.
        transport.begin(BatchSequence(epoch, range(arguments.index, arguments.index + 1)))
        batch = transport.take((epoch, arguments.index), deadline_s - time.monotonic())
        recipe = recipe.at(epoch)
        rows, count = transport.rows(batch), min(_samples(arguments, recipe), batch.valid)
        labels, classes = rows.labels[:count], welcome.classes
        if welcome.labels.kind == "index":
            unknown = [label for label in labels.tolist() if not 0 <= label < len(classes)]
            if unknown:
                raise ProtocolError(
                    f"{endpoint} breaks the protocol: it sent the label {unknown[0]} of "
                    f"{len(classes)} classes"
                )
        ids = rows.sample_ids[:count].copy()
        layout = pixel_layout_of(recipe.packing)
        crops = [unpack_levels(crop[:count], layout) for group in rows.groups for crop in group]
        pictures = beside_each_other(crops)
        captions = _repeat(name_labels(welcome.labels, labels, classes), len(crops))
    remaining_s = min(5.0, max(0.1, deadline_s - time.monotonic()))
    words, is_drawn = ids, False
    with contextlib.suppress(PeerError):  # a feeder without selections serves datasets only
        sources, is_drawn = request_sources(
            endpoint, arguments.dataset, ids.tolist(), remaining_s, keys
        )
        words = np.array([sources[number][1] for number in ids.tolist()], np.int64)
    notes = _notes(recipe, ids, None, arguments, words)
    if is_drawn:  # what was done depends on how often a sample came before, which is not sent
        notes = [Note(note.facts) for note in notes]
    return recipe, pictures, captions, notes


def _samples(arguments: argparse.Namespace, recipe: "Recipe") -> int:
    """How many samples make about ``--images`` pictures, one for each crop."""
    images: int = arguments.images
    return -(-images // len(recipe.crop_sizes))


def _notes(
    recipe: "Recipe",
    sample_ids: "NDArray[np.int64]",
    sizes: "Sizes | None",
    arguments: argparse.Namespace,
    words: "NDArray[np.int64]",
) -> "list[Note]":
    """The notes of each crop of the first sample, then of the second, …; crops are drawn by
    ``words``."""
    from feeder.cli.contact_sheet import note_samples

    seed, epoch = arguments.seed, arguments.epoch
    of_crops = [
        note_samples(one, sample_ids, sizes, words, seed=seed, epoch=epoch, crop=crop)
        for crop, one in enumerate(recipe.of_crops())
    ]
    return [note for notes in zip(*of_crops, strict=True) for note in notes]


def _repeat(captions: list[str], times: int) -> list[str]:
    return [caption for caption in captions for _ in range(times)]


def _parse_size(text: str) -> object:
    """An image size, or sizes by epoch as JSON, which the recipe checks."""
    from feeder.plan.recipe import parse_field

    try:
        _, value = parse_field(f"image_size={text}")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if type(value) is not int and not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is neither pixels nor JSON of sizes by epoch")
    return value


def _recipe(arguments: argparse.Namespace, samples: int) -> "Recipe":
    from feeder.plan.recipe import Recipe, parse_field

    batch_size = arguments.batch_size
    batch_size = min(_BATCH_SIZE, samples) if batch_size is None else batch_size
    overrides: dict[str, object] = {}
    if arguments.split == "val" and isinstance(
        arguments.image_size, int
    ):  # the usual margin around the centre crop, at any size
        overrides["resize_size"] = round(arguments.image_size * 256 / 224)
    for text in arguments.recipe:
        name, value = parse_field(text)
        if name in ("split", "batch_size", "image_size"):
            raise ConfigError(f"--recipe {name}: use --{name.replace('_', '-')} for that")
        overrides[name] = value
    return Recipe.for_split(
        arguments.split, batch_size=batch_size, image_size=arguments.image_size, **overrides
    )


def describe_recipe(recipe: "Recipe") -> str:
    """The recipe as one line: crop and mirroring, then other fields that are not default.

    Those are as ``--recipe`` takes them.
    """
    import msgspec

    crop = f"short side to {recipe.resize_size} px, centre crop of {recipe.image_size} px"
    if recipe.crops:
        groups = [
            f"{group.count} of {_describe_crop(recipe.of_group(number))}"
            + "".join(
                f", {name.removesuffix('_probability')} {100 * probability:.3g} %"
                for name, probability in zip(group._fields[4:], group[4:], strict=True)
                if probability is not None
            )
            for number, group in enumerate(recipe.crops)
        ]
        crop = f"random-resized crops: {'; '.join(groups)}"
    elif recipe.crop == "random-resized":
        crop = f"random-resized crop of {_describe_crop(recipe)}"
    default = msgspec.structs.asdict(
        type(recipe).for_split(recipe.split, batch_size=recipe.batch_size)
    )
    if recipe.auto_augment == "rand-augment":  # then these are always stated
        default |= {"rand_augment_ops": None, "rand_augment_magnitude": None}
    changed = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in msgspec.structs.asdict(recipe).items()
        if name not in _IN_SENTENCE and value != default[name]
    ]
    mirrored = f"{100 * recipe.flip_probability:.3g} % mirrored"
    return "recipe: " + ", ".join([crop, recipe.interpolation, mirrored, *changed])


def _describe_crop(recipe: "Recipe") -> str:
    return (
        f"{100 * recipe.scale[0]:.3g} % to {100 * recipe.scale[1]:.3g} % of the image, aspect "
        f"{recipe.ratio[0]:.3g} to {recipe.ratio[1]:.3g}, to {recipe.image_size} px"
    )


def _check_index(index: int, batches: int, recipe: "Recipe") -> None:
    if batches == 0:
        raise ConfigError(
            f"the dataset has fewer samples than one batch of {recipe.batch_size}: use a smaller "
            "--batch-size"
        )
    if not 0 <= index < batches:
        raise ConfigError(f"--index {index} is not within the epoch's batches 0 .. {batches - 1}")
