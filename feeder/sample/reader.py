"""The sample path, from its shard to its row in a batch's slot: the hot path.

    read      one pread of the sample's blob into a reused buffer
    decode    the tiles that the crop touches to RGBX, at 1/1, 1/2, 1/4 or 1/8 size, into a second
              one; TurboJPEG, where it decodes, needs them as a JPEG first (join)
    resize    the crop's box in that picture, antialiased, mirrored, packed into the slot
    augment   only if the recipe augments; ``feeder.sample.finish`` then also resizes and packs

An image that the decoded cache holds whole, at the crop's scale, skips the first two: its crop is
resized from there. A row that is the same in every epoch may be copied from the cache.

Where the recipe has several crops a sample, its blob is read once, and its crops share decodes
(``decode_plan``); each is resized and augmented by itself.

The crop is drawn before any pixel is touched. The result equals decoding the whole image with
libjpeg-turbo at the crop's scale and calling Pillow-SIMD's ``Image.resize(size, BILINEAR,
box=box)`` on it, bit for bit; BICUBIC and BOX likewise. Bilinear without antialiasing, which Pillow
does not have, gives the same for a window as for the whole image.
Nothing is allocated per image; errors are caught once, around a sample.
"""

import itertools
from collections.abc import Iterable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import BlobLocation, Samples
from feeder.errors import SampleError
from feeder.jpeg import resize
from feeder.jpeg.crop_decode import McuGrids, TileWindows, rebuild_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_rgbx, decode_window
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.resize import FILTER_SUPPORT, Filter, resize_pack
from feeder.jpeg.scratch import Scratch
from feeder.plan.augment import Augmentation
from feeder.plan.crop import plan_crops
from feeder.plan.draws import DRAW_SHIFT
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.plan.rng import crop_words
from feeder.sample.cache import COUNTS, DecodedPictures, PackedRows, WholeImage
from feeder.sample.decode_plan import DecodePlan, plan_decode, share_decodes
from feeder.sample.finish import Finisher

STAGES = ("read", "join", "decode", "resize", "augment")

_Window = tuple[int, int, int, int, int, int]
_Box = tuple[float, float, float, float]
_Origin = tuple[int, int]
_Finish = tuple[Finisher | None, _Box, bool, Augmentation | None, Pixels]
_Group = tuple[int, Recipe, Finisher | None]
"""How many crops, the recipe of each, and what finishes them."""


class SampleReader:
    """Turns samples of one dataset into rows of a batch of one recipe; not thread-safe.

    One lives in each worker process for each dataset and recipe; it owns the scratch buffers.
    ``seconds`` adds up the time spent in each of STAGES, ``fill_seconds`` that of decoding whole
    images for the cache and writing them there, ``images`` counts the crops made or copied,
    ``decoded_bytes`` the pixels that were decoded, ``fallbacks`` the decodes that Feeder's own
    decoder left to TurboJPEG.
    """

    def __init__(
        self,
        dataset: Samples,
        recipe: Recipe,
        cached: DecodedPictures | PackedRows | None = None,
        *,
        decoder: Decoder = "own",
        vectors: str | None = None,
    ) -> None:
        """``recipe`` is one in force (``Recipe.at``), ``cached`` the part of the decoded cache that
        serves it and this dataset.

        ``vectors`` is the version of decoding, by default the CPU's fastest; a sample is resized as
        on a CPU that has no faster one.
        """
        assert not recipe.phases, "a reader makes rows of one size"
        self._dataset = dataset
        self.recipe = recipe
        self._decoder = decoder
        self._decode_version = vectors
        self._resize_version = resize.version_beside(vectors)
        self._pictures = cached if isinstance(cached, DecodedPictures) else None
        self._rows = cached if isinstance(cached, PackedRows) else None
        self._groups: list[_Group] = []
        for number, (count, _) in enumerate(recipe.group_shapes):
            one = recipe.of_group(number)
            self._groups.append((count, one, Finisher.for_recipe(one, self._resize_version)))
        self._planar = pixel_layout_of(recipe.packing).channels_first
        self._filter: Filter = "bilinear"
        if recipe.interpolation != "bilinear-no-antialias":  # which the finisher does
            self._filter = recipe.interpolation
        # At least 1: all of the box must be in the picture, even where the filter box skips pixels.
        self._support_steps = max(1.0, FILTER_SUPPORT[self._filter])
        self._blob, self._rgbx = Scratch(), Scratch()
        self._held: tuple[int, NDArray[np.uint8]] | None = None  # the blob that was read last
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.fill_seconds = 0.0
        self.images = 0
        self.decoded_bytes = 0
        self.fallbacks = 0

    @property
    def cache_counts(self) -> tuple[int, ...]:
        """Counts of the decoded cache's use: ``feeder.sample.cache.COUNTS``."""
        cached = self._pictures or self._rows
        if cached is None:
            return (0,) * len(COUNTS)
        return cached.hits, cached.misses, cached.fills, cached.moved_bytes

    def fill(
        self,
        sample_ids: NDArray[np.int64],
        *,
        draws: NDArray[np.int64] | None = None,
        seed: int,
        epoch: int,
        pixels: Pixels | Sequence[Pixels],
        labels: LabelRows,
        further: Sequence[Pixels | Sequence[Pixels]] = (),
    ) -> None:
        """Write the samples into ``pixels`` (n, size, size, 3) and ``labels`` (n,), both in place;
        ``pixels`` may be a list of rows.

        Pixels are int8, or of the type and shape of the recipe's packing, and C-contiguous; labels
        int64, or of the type and shape of the dataset's kind (``feeder.plan.labels``). ``further``
        are the pixels of each further crop of a sample, where the recipe has several. Raises
        SampleError naming the first sample that is damaged.
        """
        records = self._dataset.read_records(sample_ids)
        self._dataset.read_labels(sample_ids, records, labels)
        words = sample_ids if draws is None else sample_ids + (draws << DRAW_SHIFT)
        if self._rows is None:
            self._make(sample_ids, words, records, seed, epoch, [pixels, *further])
            return
        missing = self._rows.copy_found(sample_ids, pixels)
        self.images += len(sample_ids) - len(missing)
        if missing.size:
            rows = [pixels[row] for row in missing.tolist()]
            found = sample_ids[missing], words[missing], records[missing]
            self._make(*found, seed, epoch, [rows])
            self._rows.keep(sample_ids[missing], rows)

    def _make(
        self,
        sample_ids: NDArray[np.int64],
        words: NDArray[np.int64],
        records: NDArray[np.void],
        seed: int,
        epoch: int,
        crops: Sequence[Pixels | Sequence[Pixels]],
    ) -> None:
        """Draw the crops and write the samples into the rows of ``crops``, n of each.

        ``words`` (n,) are what they are drawn by: ``EpochPlan.words`` of the dataset's ids.
        """
        grids = McuGrids.of_records(records)
        windows, scales, finishes = self._draw(words, grids, seed, epoch, crops)
        served: Sequence[Iterable[_Finish]]
        if len(crops) == 1:
            served = list(zip(finishes))
        else:
            shared = share_decodes(grids, windows, scales)
            windows, scales = shared.windows, shared.scales
            served = [[finishes[crop] for crop in of_decode] for of_decode in shared.crops]
            sample_ids, records = sample_ids[shared.rows], records[shared.rows]
            grids = grids.take(shared.rows)
        fields, denominators = _window_fields(windows), scales.tolist()
        origins = np.stack([windows.x, windows.y], axis=1) // scales[:, None]
        shown = list(zip(fields, denominators, origins.tolist(), served, strict=True))
        missing: NDArray[np.int64] = np.arange(len(shown))
        to_fill: Iterable[WholeImage | None] = itertools.repeat(None, len(shown))
        if self._pictures is not None:
            found = self._pictures.find(sample_ids, grids, windows, scales)
            missing, to_fill = found.missing, found.to_fill
        blobs = self._dataset.find_blobs(sample_ids[missing], records[missing])
        if self._pictures is not None:
            for at, cached, stride_bytes in found.hits:
                self._finish(cached, stride_bytes, *shown[at])
        self._held = None
        for at, location, whole in zip(missing.tolist(), blobs, to_fill, strict=True):
            try:
                self._make_one(location, whole, *shown[at])
            except ValueError as error:
                name = self._dataset.describe(location.sample_id)
                raise SampleError(
                    f"{name} does not decode ({error}): check the dataset with "
                    f"`feeder verify {self._dataset.where}` and pack it again",
                    location.sample_id,
                ) from error

    def _draw(
        self,
        sample_words: NDArray[np.int64],
        grids: McuGrids,
        seed: int,
        epoch: int,
        crops: Sequence[Pixels | Sequence[Pixels]],
    ) -> tuple[TileWindows, NDArray[np.int64], list[_Finish]]:
        """Return window, scale and finish of each crop: the first of n samples, the second, …."""
        plans: list[DecodePlan] = []
        scales: list[NDArray[np.int64]] = []
        finishes: list[_Finish] = []
        first = 0
        for count, recipe, finisher in self._groups:
            words, of_crops = sample_words, grids
            if len(crops) > 1:
                each = [crop_words(sample_words, crop) for crop in range(first, first + count)]
                words = np.concatenate(each)
                of_crops = grids.take(np.tile(np.arange(len(sample_words)), count))
            drawn = plan_crops(
                recipe,
                seed=seed,
                epoch=epoch,
                sample_ids=words,
                widths=of_crops.width,
                heights=of_crops.height,
            )
            plan = plan_decode(
                of_crops,
                drawn.boxes,
                drawn.scales,
                recipe.image_size,
                self._support_steps,
                whole=not recipe.partial_decode,
            )
            augmentations: list[Augmentation] | list[None] = [None] * len(words)
            if finisher is not None:
                augmentations = finisher.plan(seed=seed, epoch=epoch, sample_ids=words)
            finishes += zip(
                itertools.repeat(finisher, len(words)),
                plan.boxes.tolist(),
                drawn.flips.tolist(),
                augmentations,
                itertools.chain.from_iterable(crops[first : first + count]),
                strict=True,
            )
            plans.append(plan)
            scales.append(drawn.scales)
            first += count
        if len(plans) == 1:
            return plans[0].windows, scales[0], finishes
        edges = zip(*(plan.windows.edges for plan in plans), strict=True)
        of_crops = grids.take(np.tile(np.arange(len(sample_words)), first))
        windows = TileWindows.of_edges(of_crops, *map(np.concatenate, edges))
        return windows, np.concatenate(scales), finishes

    def _make_one(
        self,
        location: BlobLocation,
        whole: WholeImage | None,
        window: _Window,
        scale: int,
        origin: _Origin,
        finishes: Iterable[_Finish],
    ) -> None:
        """Decode one window of a sample, and make the rows of the crops in it."""
        if self._held is None or self._held[0] != location.sample_id:
            started = perf_counter()
            blob = self._blob.take(location.blob_bytes + READ_SLACK_BYTES)
            self._dataset.read_blob(location, blob)
            self._held = location.sample_id, blob
            self.seconds["read"] += perf_counter() - started
        _, blob = self._held
        decoded = None if whole is None else self._fill_cache(location.sample_id, blob, whole)
        picture, stride_bytes = decoded or self._decode(blob, window, scale)
        self._finish(picture, stride_bytes, window, scale, origin, finishes)

    def _finish(
        self,
        picture: NDArray[np.uint8],
        stride_bytes: int,
        window: _Window,
        scale: int,
        origin: _Origin,
        finishes: Iterable[_Finish],
    ) -> None:
        """Make the rows of a decoded picture."""
        *_, source_width, source_height = window
        width, height = -(-source_width // scale), -(-source_height // scale)
        for finisher, box, flip, augmentation, out in finishes:
            started, augment_s = perf_counter(), 0.0
            shown = (picture, stride_bytes, width, height, box)
            if finisher is None or augmentation is None:
                resize_pack(
                    *shown,
                    mirrored=flip,
                    out=out,
                    planar=self._planar,
                    resampling=self._filter,
                    origin=origin,
                    version=self._resize_version,
                )
            else:
                augment_s = finisher.finish(
                    *shown, origin=origin, mirrored=flip, augmentation=augmentation, out=out
                )
            self.seconds["resize"] += perf_counter() - started - augment_s
            self.seconds["augment"] += augment_s
            self.images += 1

    def _decode(
        self, blob: NDArray[np.uint8], window: _Window, scale: int
    ) -> tuple[NDArray[np.uint8], int]:
        """Decode a window's tiles; return the picture, in the scratch, and its stride.

        ``blob`` has READ_SLACK_BYTES after the blob.
        """
        started = perf_counter()
        blob_bytes = len(blob) - READ_SLACK_BYTES
        *_, source_width, source_height = window
        width, height = -(-source_width // scale), -(-source_height // scale)
        picture, stride_bytes = self._rgbx.take_picture(width, height)
        if self._decoder == "turbojpeg" or not decode_window(
            blob,
            blob_bytes,
            window,
            scale,
            stride_bytes,
            picture,
            version=self._decode_version,
        ):
            jpeg = rebuild_jpeg(blob[:blob_bytes], *window)
            joined_at = perf_counter()
            self.seconds["join"] += joined_at - started
            started = joined_at
            joined = np.frombuffer(jpeg, np.uint8)
            decode_rgbx(joined, source_width, source_height, scale, stride_bytes, picture)
            self.fallbacks += self._decoder == "own"
        self.seconds["decode"] += perf_counter() - started
        self.decoded_bytes += height * stride_bytes
        return picture, stride_bytes

    def _fill_cache(
        self, sample_id: int, blob: NDArray[np.uint8], whole: WholeImage
    ) -> tuple[NDArray[np.uint8], int] | None:
        """Decode all of an image and cache it; return the window in it, and its stride.

        None if its entry cannot be claimed.
        """
        assert self._pictures is not None, "an image fills the cache only if there is one"
        entry = self._pictures.claim(sample_id, whole)
        if entry is None:
            return None
        started, before = perf_counter(), dict(self.seconds)
        everything = (0, whole.mcus, 0, whole.mcu_rows, whole.width, whole.height)
        try:
            picture, stride_bytes = self._decode(blob, everything, whole.scale)
            self._pictures.keep(entry, picture[: whole.size_bytes])
        except BaseException:  # else the entry stays locked for as long as this process lives
            self._pictures.abandon(entry)
            raise
        self.seconds.update(before)  # counted as filling, not as stages of the sample path
        self.fill_seconds += perf_counter() - started
        return picture[whole.y * stride_bytes + 4 * whole.x :], stride_bytes


def _window_fields(windows: TileWindows) -> list[_Window]:
    """Return each sample's window as ``decode_window`` takes it, in plain integers."""
    fields = ("first_mcu", "end_mcu", "first_row", "end_row", "width", "height")
    return list(zip(*(getattr(windows, field).tolist() for field in fields), strict=True))
