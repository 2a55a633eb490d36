"""Passes batches through what frameworks do with them: ``python batch_uses.py USE ENDPOINT``."""

import sys
from collections.abc import Callable

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from trainer_client import Batch, FeederLoader

META = torch.device("meta")  # another device, on a machine that has none


def check_equal(batch: Batch, expected: Batch) -> None:
    """The same batch, with its attributes."""
    assert type(batch) is Batch
    assert all(map(torch.equal, batch, expected))
    check_known(batch, expected)


def check_known(batch: Batch, expected: Batch) -> None:
    """The attributes of the same batch."""
    assert torch.equal(batch.sample_ids, expected.sample_ids)
    known = (batch.valid, batch.epoch, batch.index)
    assert known == (expected.valid, expected.epoch, expected.index)


def torch_(batch: Batch) -> None:
    moved = batch.to(META, non_blocking=True)
    assert {each.device for each in moved} == {META}
    check_known(moved, batch)
    if torch.cuda.is_available():
        check_equal(pin_memory(batch), batch)
        assert all(each.is_pinned() for each in pin_memory(batch))
    moved = torch.utils._pytree.tree_map(lambda each: each.to(META), batch)
    assert {each.device for each in moved} == {META}
    for rebuilt in (Batch(*batch), Batch(each for each in batch), Batch([*batch])):
        assert all(map(torch.equal, rebuilt, batch))
    doubled = torch.compile(lambda pair: (pair[0] * 2, pair[1]))(batch)
    assert torch.equal(doubled[0], batch.images * 2)


def lightning(batch: Batch) -> None:
    from lightning.fabric.utilities.apply_func import move_data_to_device
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning_utilities.core.apply_func import apply_to_collection

    moved = move_data_to_device(batch, META)
    assert {each.device for each in moved} == {META}
    check_known(moved, batch)
    assert extract_batch_size(batch) == len(batch.labels)
    halved = apply_to_collection(
        batch, torch.Tensor, lambda each: each.half() if each.is_floating_point() else each
    )  # as Lightning's 16-true does
    assert type(halved) is Batch
    images, labels = halved
    assert images.dtype == torch.float16
    assert labels is batch.labels


def fabric(batch: Batch, loader: FeederLoader) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, _ = fabric.setup(torch.nn.Linear(3, 2), torch.optim.SGD([torch.nn.Parameter()]))
    assert model(fabric.to_device(batch).images.mean((2, 3))).shape == (len(batch.labels), 2)
    check_refused(TypeError, lambda: fabric.setup_dataloaders(loader))


def accelerate(batch: Batch, loader: FeederLoader) -> None:
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import find_batch_size, send_to_device

    accelerator = Accelerator(cpu=True)
    assert accelerator.prepare(loader) is loader
    moved = send_to_device(batch, META, non_blocking=True)
    assert {each.device for each in moved} == {META}
    check_known(moved, batch)
    assert find_batch_size(batch) == len(batch.labels)
    gathered = accelerator.gather(batch)
    assert all(map(torch.equal, gathered, batch))
    check_refused(ValueError, lambda: next(iter(skip_first_batches(loader, 2))))


def check_refused(error: type[Exception], use: Callable[[], object]) -> None:
    """What the documents say to avoid is an error, not another order of samples."""
    try:
        use()
    except error:
        return
    raise AssertionError("this is no error any more: correct docs/frameworks.md")


def main() -> None:
    use, endpoint = sys.argv[1:]
    with FeederLoader(
        endpoint, dataset="val", split="val", batch_size=5, image_size=32, channels=3
    ) as loader:
        for batch in loader:  # the last one is short
            {
                "torch": torch_,
                "lightning": lightning,
                "fabric": lambda batch: fabric(batch, loader),
                "accelerate": lambda batch: accelerate(batch, loader),
            }[use](batch)


main()
