"""Host memory and the copy to the device."""

import torch

from feeder.client.host_memory import BatchBuffer
from feeder.plan.labels import INDEX_LABELS, LabelSpec
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


def test_the_host_waits_for_all_copies_before_it_has_no_next_batch() -> None:
    copies, event = CopiesInFlight(), FakeEvent()
    copies.add(event, 4)
    assert copies.reclaim(all_of_them=True) == [4]
    assert event.waited


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
