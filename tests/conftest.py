"""Fixtures that every test may use."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "imagenet-sample"

# A shell ignores SIGINT in what it runs in the background, and all that tests start would inherit
# that: there, an interrupt would be no interrupt. Whoever handles it is left alone.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples in every run, however slow the machine: a run that fails says something about
# the change, and not about luck. `--hypothesis-profile default` draws others.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)  # before a shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that mostly wait, so that others have the processors meanwhile."""
    items.sort(key=lambda item: "faults" not in item.path.parts)


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """The folder of 201 real ImageNet JPEGs beside the checkout; skips where it is missing."""
    if not _SAMPLE.is_dir():
        pytest.skip(f"the ImageNet sample is not at {_SAMPLE.name} beside the checkout (../shared)")
    return _SAMPLE
