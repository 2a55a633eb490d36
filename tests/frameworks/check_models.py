"""Our models against torchvision's and timm's: same sizes, names and outputs, weights both ways."""

import json
from typing import Any

import pytest

from tests.frameworks.running import SCRIPTS, environment, run_example

PYTHON = environment("timm")
OURS = (
    *("resnet18", "resnet34", "resnet50", "resnet101"),
    *(f"efficientnet-b{number}" for number in range(6)),
)
TIMM = ("timm:resnet18", "timm:resnet26d", "timm:tf_efficientnet_b0", "timm:convnext_atto")
RELATIVE_MAX = 1e-4  # of the largest output, in float32
SPREAD_MIN = 0.01  # between images: outputs that the image hardly changes show no difference


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("models")
    runner, script = SCRIPTS / "with_torchvision.py", SCRIPTS / "compare_models.py"
    run = run_example(PYTHON, str(runner), script, folder=folder)
    lines = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    return {each["model"]: each for each in lines}


# In training dropout and stochastic depth draw the same numbers, in the same order.
@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_states_and_outputs_on_the_same_weights_are_those_of_the_other_models(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    assert found[name]["same names and shapes"]
    for mode in ("eval", "train", "eval after", "eval of saved"):
        assert found[name][mode]["spread"] > SPREAD_MIN, mode
        assert found[name][mode]["difference"] < RELATIVE_MAX, mode
    if name in TIMM:
        assert (found[name]["channels"], found[name]["outputs"]) == (4, [2, 7])
        assert found[name]["fourth channel"] == 0


def test_a_stem_that_normalises_its_weights_is_left_alone(
    found: dict[str, dict[str, Any]],
) -> None:
    model = found["timm:resnetv2_50x1_bit"]
    assert (model["channels"], model["outputs"]) == (4, [2, 7])
    assert model["stem"] == "StdConv2d"
