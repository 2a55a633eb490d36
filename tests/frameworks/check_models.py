"""Our models against torchvision's and timm's: same sizes, names and outputs, weights both ways."""

import json
from typing import Any

import pytest

from tests.frameworks.running import environment, run_example
from tests.support.sources import REPOSITORY

PYTHON = environment("timm")
SCRIPTS = REPOSITORY / "tests" / "frameworks" / "scripts"
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


@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_saved_states_have_the_names_and_shapes_of_the_other_models(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    assert found[name]["same names and shapes"]


# In training dropout and stochastic depth draw the same numbers, in the same order.
@pytest.mark.parametrize("mode", ["eval", "train", "eval after", "eval of saved"])
@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_outputs_are_equal_on_the_same_weights(
    found: dict[str, dict[str, Any]], name: str, mode: str
) -> None:
    assert found[name][mode]["spread"] > SPREAD_MIN
    assert found[name][mode]["difference"] < RELATIVE_MAX


@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm_read_four_channels_of_which_the_last_begins_at_zero(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    assert found[name]["channels"] == 4
    assert found[name]["outputs"] == [2, 7]
    assert found[name]["fourth channel"] == 0


def test_a_stem_that_normalises_its_weights_is_left_alone(
    found: dict[str, dict[str, Any]],
) -> None:
    model = found["timm:resnetv2_50x1_bit"]
    assert (model["channels"], model["outputs"]) == (4, [2, 7])
    assert model["stem"] == "StdConv2d"
