"""The self-test's hash depends on Feeder's code and its libraries, and on nothing else."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from PIL import ImageEnhance
from turbojpeg import TJFLAG_FASTDCT, TJFLAG_FASTUPSAMPLE, TJPF_RGBX

import feeder.jpeg.decode
import feeder.plan.epoch
import feeder.plan.erasing
import feeder.sample.augment_ops
import feeder.sample.finish
import feeder.sample.reader
import feeder.sample.self_test
from feeder.errors import ResourceError
from feeder.jpeg import resize
from feeder.jpeg.decode import VERSIONS
from feeder.plan.augment import plan_augmentations
from feeder.plan.crop import plan_crops
from feeder.plan.operations import Operation
from feeder.sample.self_test import (
    DECODES,
    FINISHES,
    IMAGE_FOLDER,
    IMAGES,
    KEYS,
    PackedImages,
    compute_self_test,
)
from tests.support.daemon import DEADLINE_S
from tests.support.sources import REPOSITORY

HASH = compute_self_test()

PLAIN_CPU = {
    "JSIMD_FORCENONE": "1",
    "NPY_DISABLE_CPU_FEATURES": " ".join(x for x in __cpu_dispatch__ if __cpu_features__[x]),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
}
"""Makes libjpeg-turbo, numpy and the C library use their code for any CPU."""


def test_hash_is_the_same_in_another_locale_and_without_vector_code(tmp_path: Path) -> None:
    program = (
        "import feeder.sample.self_test as self_test\n"
        "self_test.VERSIONS = ('portable',)\n"
        "from feeder.sample.self_test import compute_self_test\n"
        "print(compute_self_test())\n"
    )
    environment = {"LC_ALL": "C", "TZ": "Pacific/Auckland", "PYTHONHASHSEED": "77"}
    environ = os.environ | PLAIN_CPU | environment | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.strip() == HASH
    assert re.fullmatch("[0-9a-f]{32}", HASH)


def test_hash_does_not_depend_on_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute_self_test("turbojpeg") == HASH
    monkeypatch.setattr(feeder.sample.reader, "decode_rgbx", decode_with(0))
    assert compute_self_test() == HASH


def _change_a_level(original: Callable[..., object], of: str = "") -> Callable[..., object]:
    """Change a pixel of what ``decode_window`` or a way of resizing makes, or a version of it."""

    def call(*arguments: Any, **options: Any) -> object:
        result = original(*arguments, **options)
        if not of or options["version"] == of:
            out = options["out"] if "out" in options else arguments[5]
            out.reshape(-1).view(np.uint8)[0] ^= 64
        return result

    return call


@pytest.mark.parametrize(
    ("owner", "name", "version"),
    [
        *((feeder.sample.reader, "decode_window", version) for version in VERSIONS),
        *((feeder.sample.reader, "resize_pack", version) for version in resize.VERSIONS),
        *((feeder.sample.finish, "resize_pack", version) for version in resize.VERSIONS),
    ],
)
def test_version_with_other_pixels_is_named(
    owner: ModuleType, name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of resizing is named after that of decoding beside it."""
    monkeypatch.setattr(owner, name, _change_a_level(getattr(owner, name), version))
    names = [version]
    if name == "resize_pack":
        names = [each for each in VERSIONS if resize.version_beside(each) == version]
    with pytest.raises(ResourceError, match=rf"other pixels with .*\(({'|'.join(names)})\):? "):
        compute_self_test()


def test_crops_that_share_tiles_with_other_pixels_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What decodes a window gives pixels of its own to each size of window."""
    original = feeder.sample.reader.decode_rgbx

    def decode(
        jpeg: np.ndarray, width: int, height: int, scale: int, stride: int, out: np.ndarray
    ) -> None:
        original(jpeg, width, height, scale, stride, out)
        out[:] ^= np.uint8(width % 32 + height % 32)

    monkeypatch.setattr(feeder.sample.reader, "decode_rgbx", decode)
    with pytest.raises(ResourceError, match=r"crop \d of the self-test's images has other pixels"):
        compute_self_test("turbojpeg")


def test_turbojpeg_with_other_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder.sample.reader, "decode_rgbx", decode_with(TJFLAG_FASTDCT))
    with pytest.raises(ResourceError, match=r"with turbojpeg than with own \(portable\)"):
        compute_self_test()


def decode_with(flags: int) -> Callable[..., None]:
    """Return a ``decode_rgbx`` that is PyTurboJPEG's, with flags."""

    def decode(
        jpeg: np.ndarray, width: int, height: int, scale: int, stride: int, out: np.ndarray
    ) -> None:
        picture = feeder.jpeg.decode.turbojpeg().decode(
            jpeg,
            pixel_format=TJPF_RGBX,
            scaling_factor=(1, scale) if scale > 1 else None,
            flags=flags,
        )
        rows, columns, _ = picture.shape
        shown = np.lib.stride_tricks.as_strided(out, (rows, 4 * columns), (stride, 1))
        shown[:] = picture.reshape(rows, 4 * columns)

    return decode


def _reverse(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *arguments: original(*arguments)[::-1].copy()


READER, FINISH = feeder.sample.reader, feeder.sample.finish
CHANGES: dict[str, tuple[object, str, Callable[..., object]]] = {
    "fast upsampling": (READER, "decode_rgbx", lambda _: decode_with(TJFLAG_FASTUPSAMPLE)),
    "fast DCT": (READER, "decode_rgbx", lambda _: decode_with(TJFLAG_FASTDCT)),
    "one level of resizing": (READER, "resize_pack", _change_a_level),
    "one level of resizing before augmenting": (FINISH, "resize_pack", _change_a_level),
    "one level of resizing without antialiasing": (FINISH, "resize_plainly", _change_a_level),
    "an enhancement": (ImageEnhance, "Color", lambda _: ImageEnhance.Brightness),
    "a blur": (feeder.sample.augment_ops, "blur", lambda _: lambda levels, _: levels),
    "noise": (feeder.plan.erasing, "random_bytes", _reverse),
    "the batch order": (feeder.plan.epoch.EpochPlan, "samples", _reverse),
    "labels": (
        feeder.sample.self_test,
        "record_of",
        lambda original: lambda *a, label, **b: original(*a, label=label + 1, **b),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_hash_changes_with_any_visible_change(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, change = CHANGES[what]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    assert compute_self_test("turbojpeg") != HASH


def test_recipes_cover_every_scale_of_decoding_and_every_operation() -> None:
    ids = np.arange(len(IMAGES))
    records = PackedImages.built_in().read_records(ids)
    assert set(records["subsampling"].tolist()) == {0, 1, 2, 3, 4, 5}
    scales: Counter[int] = Counter()
    operations: Counter[str] = Counter()
    for recipe in (*DECODES, *FINISHES):
        for seed, epoch in KEYS:
            key = {"seed": seed, "epoch": epoch, "sample_ids": ids}
            crops = plan_crops(
                recipe,
                widths=records["width"],
                heights=records["height"],
                **key,  # type: ignore[arg-type]
            )
            scales.update(crops.scales.tolist())
            for augmentation in plan_augmentations(recipe, **key):  # type: ignore[arg-type]
                operations.update(step[0] for step in augmentation.steps)
                operations["erasing"] += augmentation.erasure is not None
    assert set(scales) == {1, 2, 4, 8}
    assert set(operations) == {*get_args(Operation), "erasing"} - {"identity"}
    assert operations["erasing"]
    assert {recipe.interpolation for recipe in (*DECODES, *FINISHES)} == {
        *("bilinear", "bicubic", "box", "bilinear-no-antialias")
    }


def test_images_that_are_missing_or_damaged_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(IMAGE_FOLDER, tmp_path / "images")
    monkeypatch.setattr(feeder.sample.self_test, "IMAGE_FOLDER", folder)
    image = folder / f"{IMAGES[0]}.jpg"
    image.write_bytes(image.read_bytes()[:1000])
    with pytest.raises(ResourceError, match=r"444\.jpg, a part of feeder, .*truncated"):
        compute_self_test()
    image.unlink()
    with pytest.raises(ResourceError, match=r"444\.jpg, .* \(No such file"):
        compute_self_test()
