"""Images that Feeder's decoder leaves to TurboJPEG are counted, with each chunk."""

from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.plan.labels import INDEX_LABELS
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.chunk_work import Fill
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.filler import ChunkFiller
from feeder.worker.messages import DatasetSource, OpenSession
from feeder.worker.slot_memory import SlotMemory
from tests.support.hard_jpegs import hard_jpeg
from tests.support.sources import pack

KINDS = ("4:2:0", "4:4:0", "4:2:0", "rgb", "grey", "4:1:1", "4:4:4")
LEFT = 3  # 4:4:0, rgb and 4:1:1


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    source = folder / "source" / "class"
    source.mkdir(parents=True)
    for number, kind in enumerate(KINDS):
        (source / f"{number}.jpg").write_bytes(hard_jpeg(number, kind, 70, 60, 80))
    pack(source.parent, folder / "dataset", shards=1)
    return folder / "dataset"


@pytest.mark.parametrize(("decoder", "count"), [("own", LEFT), ("turbojpeg", 0)])
def test_a_reader_counts_what_its_decoder_leaves_to_turbojpeg(
    packed: Path, decoder: Decoder, count: int
) -> None:
    recipe = Recipe.for_split("val", batch_size=len(KINDS), image_size=32)
    with Dataset.open(packed) as dataset:
        reader = SampleReader(dataset, recipe, decoder=decoder)
        for epoch in (1, 2):
            reader.fill(
                np.arange(len(KINDS)),
                seed=0,
                epoch=epoch,
                pixels=np.empty((len(KINDS), 32, 32, 3), np.int8),
                labels=np.empty(len(KINDS), np.int64),
            )
            assert reader.fallbacks == count * epoch


def test_each_chunk_is_reported_with_its_own(packed: Path) -> None:
    recipe = Recipe.for_split("val", batch_size=len(KINDS), image_size=32)
    memory = SlotMemory.create(SlotLayout.of_recipe(recipe, INDEX_LABELS, slots=1))
    with Dataset.open(packed) as dataset:
        source = DatasetSource(folder=bytes(packed), fingerprint=dataset.manifest.fingerprint)
    filler = ChunkFiller({"d": source}, open_shards=8)
    filler.open_session(
        OpenSession(session=1, dataset="d", recipe=recipe, seed=0, slots=1), memory.fileno()
    )
    counts = [filler.fill(Fill(7, 1, 0, 0, 0, first, 1)).fallbacks for first in range(len(KINDS))]
    assert sorted(counts) == [0] * (len(KINDS) - LEFT) + [1] * LEFT
    filler.close()
