"""Host memory and the copy to the device."""

from typing import get_args

import numpy as np
import pytest
import torch

from feeder.client.host_memory import BatchBuffer
from feeder.plan.labels import INDEX_LABELS, LabelKind, LabelSpec
from feeder.plan.packing import Packing
from feeder.plan.recipe import Recipe
from tests.trainer_client.test_device import CPU, random_pixels
from trainer_client._device import Normaliser
from trainer_client._feed import Delivery
from trainer_client._staging import CopiesInFlight, HostStage, make_stage


class FakeEvent:
    """A copy that is done when the test sets ``done``, or after a wait for it."""

    def __init__(self) -> None:
        self.done = False
        self.waited = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = self.waited = True


def test_a_buffer_is_not_free_before_its_copy_is_done() -> None:
    copies, event = CopiesInFlight(), FakeEvent()
    copies.add(event, 4)
    assert copies.reclaim() == []
    event.done = True
    assert copies.reclaim() == [4]
    assert copies.reclaim() == []


def test_the_host_waits_for_the_oldest_copy_when_it_is_too_far_ahead() -> None:
    copies, events = CopiesInFlight(), [FakeEvent(), FakeEvent(), FakeEvent()]
    for number, event in enumerate(events):
        copies.add(event, number)
    assert copies.reclaim() == [0, 1]
    assert [event.waited for event in events] == [True, True, False]
    events[2].done = True
    assert copies.reclaim() == [2]


def make_buffer(
    rows: int, side: int, labels: LabelSpec = INDEX_LABELS, **recipe: object
) -> BatchBuffer:
    return BatchBuffer(
        Recipe.for_split("train", batch_size=rows, image_size=side, **recipe), labels
    )


def test_the_host_stage_frees_its_buffer_at_once_and_keeps_no_view_of_it() -> None:
    stage = make_stage(Normaliser(CPU, torch.float32))
    assert isinstance(stage, HostStage)
    buffer = make_buffer(3, 8)
    pixels, labels = random_pixels(3, 8, 8), torch.arange(3)
    buffer.write(0, pixels.numpy().tobytes(), labels.numpy().tobytes(), labels.numpy().tobytes())
    batch = stage.load(Delivery(rows=buffer, count=3, valid=3, epoch=1, index=2, views_max=1), 5)
    assert stage.reclaim() == [5]
    assert stage.reclaim() == []
    buffer.fill_padding()
    assert torch.equal(batch.labels, labels)
    assert torch.equal(batch.sample_ids, labels)
    assert torch.equal(batch.images, Normaliser(CPU, torch.float32)(pixels))
    assert (batch.valid, batch.epoch, batch.index) == (3, 1, 2)


def test_chunks_are_written_at_their_rows() -> None:
    buffer = make_buffer(5, 8)
    buffer.fill_padding()
    assert buffer.labels.tolist() == [-100] * 5
    pixels = random_pixels(2, 8, 8)
    two = np.array([7, 8], "<i8").tobytes()
    buffer.write(3, memoryview(pixels.numpy()).cast("B"), two, two)
    assert buffer.labels.tolist() == [-100] * 3 + [7, 8]
    assert buffer.sample_ids.tolist() == [-1, -1, -1, 7, 8]
    assert (buffer.pixels[3:] == pixels.numpy()).all()
    assert not buffer.pixels[:3].any()


@pytest.mark.parametrize("kind", ["multi", "float"])
def test_padding_of_several_labels_is_nan(kind: LabelKind) -> None:
    labels = LabelSpec(kind=kind, width=3)
    buffer = make_buffer(4, 8, labels=labels)
    buffer.fill_padding()
    rows = np.array([[0, 1, 1], [1, 0, 0]], labels.dtype)
    ids = np.array([7, 8], "<i8").tobytes()
    buffer.write(0, bytes(2 * 8 * 8 * 3), rows.tobytes(), ids)
    stage = make_stage(Normaliser(CPU, torch.float32))
    batch = stage.load(Delivery(rows=buffer, count=4, valid=2, epoch=0, index=0, views_max=1), 0)
    assert batch.labels.dtype == torch.float32
    assert batch.labels[:2].tolist() == rows.tolist()
    assert batch.labels[2:].isnan().all()
    buffer.fill_padding()
    assert not batch.labels[:2].isnan().any(), "it has a copy"


def test_a_short_batch_has_only_its_real_rows() -> None:
    stage = make_stage(Normaliser(CPU, torch.float32))
    buffer = make_buffer(5, 8)
    buffer.fill_padding()
    batch = stage.load(Delivery(rows=buffer, count=2, valid=2, epoch=0, index=0, views_max=1), 0)
    assert batch.images.shape == (2, 4, 8, 8)
    assert len(batch.labels) == len(batch.sample_ids) == 2


def test_padding_is_grey_in_every_packing() -> None:
    expected = Normaliser(CPU, torch.float32)(torch.zeros(2, 8, 8, 3, dtype=torch.int8))
    for packing in get_args(Packing):
        buffer = make_buffer(2, 8, packing=packing)
        buffer.fill_padding()
        images = Normaliser(CPU, torch.float32, packing=packing)(torch.from_numpy(buffer.pixels))
        assert torch.equal(images, expected)
