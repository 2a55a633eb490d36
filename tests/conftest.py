"""Fixtures that every test may use."""

from pathlib import Path

import pytest

_SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "imagenet-sample"


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """The folder of 201 real ImageNet JPEGs beside the checkout; skips where it is missing."""
    if not _SAMPLE.is_dir():
        pytest.skip(f"the ImageNet sample is not at {_SAMPLE.name} beside the checkout (../shared)")
    return _SAMPLE
