"""Our augmentations against torchvision's own, with the same draws and the same Pillow."""

import json
from typing import Any

import pytest

from tests.frameworks.running import SCRIPTS, environment, run_example

PYTHON = environment("timm")
BLURRED_SHARE_MAX = 5e-4  # of levels near a half: torch adds up to 61 x 61 products in float32


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("augmentations")
    runner, script = SCRIPTS / "with_torchvision.py", SCRIPTS / "compare_augmentations.py"
    run = run_example(PYTHON, str(runner), script, folder=folder)
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def test_operations_on_pillow_images_are_torchvisions_to_the_bit(
    found: list[dict[str, Any]],
) -> None:
    exact = [case for case in found if "blur_probability" not in case["fields"]]
    assert len(exact) == 10 * 5, "recipes × sizes"
    for case in exact:
        assert case["differing"] == 0, case
        assert case["images"] == 2 or case["changed"] > case["images"] / 4, case


def test_blurs_are_torchvisions_but_for_levels_at_a_half(found: list[dict[str, Any]]) -> None:
    blurs = [case for case in found if "blur_probability" in case["fields"]]
    assert len(blurs) == 3 * 5, "recipes × sizes"
    for case in blurs:
        assert case["largest"] <= 1, case
        assert case["share"] < BLURRED_SHARE_MAX, case
        # A tenth of 8 pixels is no kernel.
        assert case["changed"] > 0 or case["size"] == 8, case
