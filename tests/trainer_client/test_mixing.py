"""mixup and CutMix: the papers' definitions, and draws by seed, epoch and index alone."""

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from tests.support.daemon import serve
from tests.support.sources import REPOSITORY
from trainer_client import FeederLoader, Mixing
from trainer_client._mixing import cutmix_box, mix_images, mix_labels, paste_box

MIXED_CLASSES = 7
ROWS, HEIGHT, WIDTH = 5, 12, 17


def make_images(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalised images whose fourth channel is zero, channels_last, and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(ROWS, 4, HEIGHT, WIDTH, generator=generator).to(dtype)
    images[:, 3] = 0
    return images.to(memory_format=torch.channels_last), torch.tensor([3, 0, 6, 3, 1])


def make_mixing(seed: int = 5, mixup_alpha: float = 0.2) -> Mixing:
    return Mixing(MIXED_CLASSES, mixup_alpha=mixup_alpha, cutmix_alpha=1.0, seed=seed)


def test_mixup_is_the_papers_weighted_sum_with_the_image_before() -> None:
    images, labels = make_images()
    pixels, partner = images.double().numpy(), images.double().numpy()[[4, 0, 1, 2, 3]]
    expected = 0.3 * pixels + 0.7 * partner
    np.testing.assert_allclose(mix_images(images, 0.3).numpy(), expected, rtol=1e-5, atol=1e-6)
    soft = mix_labels(labels, MIXED_CLASSES, 0.3)
    assert soft.dtype == torch.float32
    wanted = torch.zeros(ROWS, MIXED_CLASSES)
    for row, (own, other) in enumerate([(3, 1), (0, 3), (6, 0), (3, 6), (1, 3)]):
        wanted[row, own] += 0.3
        wanted[row, other] += 0.7
    torch.testing.assert_close(soft, wanted)


def test_cutmix_pastes_the_box_of_the_image_before() -> None:
    images, _ = make_images()
    left, top, width, height = 3, 2, 5, 7
    rows, columns = slice(top, top + height), slice(left, left + width)
    expected = images.numpy().copy()
    expected[..., rows, columns] = images.numpy()[[4, 0, 1, 2, 3]][..., rows, columns]
    assert np.array_equal(paste_box(images, (left, top, width, height)), expected)


@pytest.mark.parametrize(
    ("share", "centre", "expected"),
    [
        (0.75, (8, 6), (4, 3, 8, 6)),  # half the sides: 0.5 * 0.5 * 17 = 4.25, of 12: 3
        (0.75, (0, 0), (0, 0, 4, 3)),
        (0.75, (16, 11), (12, 8, 5, 4)),
        (0.0, (8, 6), (0, 0, 16, 12)),  # 8.5 rounds down: a column of 17 remains
        (1.0, (8, 6), (8, 6, 0, 0)),
        (0.999, (8, 6), (8, 6, 0, 0)),
    ],
)
def test_boxes_worked_out_by_hand(
    share: float, centre: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert cutmix_box(share, centre, HEIGHT, WIDTH) == expected


def test_the_share_of_pixels_is_the_share_of_labels() -> None:
    mixing = make_mixing(mixup_alpha=0.0)
    images = torch.arange(ROWS).view(ROWS, 1, 1, 1).expand(ROWS, 4, HEIGHT, WIDTH).float()
    labels = torch.arange(ROWS)
    shares = []
    for index in range(200):
        mixed, soft = mixing(images, labels, epoch=0, index=index)
        own = (mixed == images).double().mean(dim=(1, 2, 3))
        torch.testing.assert_close(soft[range(ROWS), range(ROWS)].double(), own, atol=1e-6, rtol=0)
        before = soft[range(ROWS), [4, 0, 1, 2, 3]].double()
        torch.testing.assert_close(before, 1 - own, atol=1e-6, rtol=0)
        shares.append(own[0].item())
    assert min(shares) < 0.3
    assert max(shares) > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_new_tensors_of_the_same_type_and_memory_format(dtype: torch.dtype) -> None:
    images, labels = make_images(dtype)
    images_before, labels_before = images.clone(), labels.clone()
    kinds = set()
    for index in range(20):
        kinds.add(make_mixing().draw(epoch=1, index=index, height=HEIGHT, width=WIDTH)[1] is None)
        mixed, soft = make_mixing()(images, labels, epoch=1, index=index)
        assert (mixed.dtype, mixed.shape) == (dtype, images.shape)
        assert mixed.is_contiguous(memory_format=torch.channels_last)
        assert mixed.untyped_storage().data_ptr() != images.untyped_storage().data_ptr()
        assert (mixed[:, 3] == 0).all()
        assert (soft.dtype, soft.shape) == (torch.float32, (ROWS, MIXED_CLASSES))
        torch.testing.assert_close(soft.sum(dim=1), torch.ones(ROWS))
        assert (soft >= 0).all()
    assert kinds == {True, False}
    assert torch.equal(images, images_before)
    assert torch.equal(labels, labels_before)


def test_a_batch_is_mixed_by_seed_epoch_and_index_alone() -> None:
    images, labels = make_images()
    mixing, resumed = make_mixing(), make_mixing()
    for index in range(9):
        mixing(images, labels, epoch=0, index=index)
    torch.manual_seed(99)  # hidden state, which must not matter
    first, second = (each(images, labels, epoch=3, index=9) for each in (mixing, resumed))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    keys = [(seed, epoch, index) for seed in (0, 1) for epoch in (0, 1) for index in (0, 1)]
    sizes = {"height": 224, "width": 224}
    assert len({make_mixing(a).draw(epoch=b, index=c, **sizes)[0] for a, b, c in keys}) == 8


def test_draws_stay_as_they_were() -> None:
    mixing = make_mixing()
    drawn = [mixing.draw(epoch=2, index=index, height=224, width=224) for index in range(4)]
    boxes = [(9, 162, 80, 62), None, (151, 137, 73, 87), (11, 0, 188, 185)]
    assert [box for _, box in drawn] == boxes
    shares = [
        1 - 80 * 62 / 224**2,
        0.38725986149564073,
        1 - 73 * 87 / 224**2,
        1 - 188 * 185 / 224**2,
    ]
    assert [share for share, _ in drawn] == pytest.approx(shares, rel=1e-12)


@pytest.mark.parametrize("alphas", [(0.0, 0.0), (-0.2, 1.0), (float("nan"), 1.0), (0.2, "1")])
def test_alphas_that_mix_nothing_are_refused(alphas: Any) -> None:
    with pytest.raises(
        ConfigError, match="mixup_alpha and cutmix_alpha must be numbers of 0 or more"
    ):
        Mixing(MIXED_CLASSES, mixup_alpha=alphas[0], cutmix_alpha=alphas[1], seed=0)


def test_the_loop_of_the_documentation_trains_on_mixed_batches(packed: Path) -> None:
    text = (REPOSITORY / "docs" / "training.md").read_text("utf-8")
    section = text.partition("\n## mixup and CutMix\n")[2].partition("\n## ")[0]
    loop = textwrap.dedent("\n".join(re.findall(r"^ {4}.*|^$", section, re.MULTILINE)))
    rows: list[int] = []
    torch.manual_seed(0)
    with serve(packed) as daemon:
        endpoint = daemon.endpoint
        with FeederLoader(endpoint, dataset="d", batch_size=8, image_size=16) as loader:
            model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16 * 16, len(loader.dataset.classes)))
            model.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            before = model[1].weight.detach().clone()
            names = {"loader": loader, "model": model, "optimiser": optimiser}
            exec(loop, names)  # the documentation's own code
            assert rows == [8] * len(loader)
    assert not torch.equal(model[1].weight, before)
    assert names["labels"].shape == (8, len(names["loader"].dataset.classes))
    torch.testing.assert_close(names["labels"].sum(dim=1), torch.ones(8))
