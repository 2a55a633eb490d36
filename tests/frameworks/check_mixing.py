"""Our mixup and CutMix against torchvision's: for equal draws, equal tensors."""

import json
from typing import Any

import pytest

from tests.frameworks.running import environment, run_example
from tests.support.sources import REPOSITORY

PYTHON = environment("timm")
SCRIPTS = REPOSITORY / "tests" / "frameworks" / "scripts"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mixing")
    runner, script = SCRIPTS / "with_torchvision.py", SCRIPTS / "compare_mixing.py"
    run = run_example(PYTHON, str(runner), script, folder=folder)
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(("kind", "draws"), [("mixup", 1), ("cutmix", 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_results_are_torchvisions_bit_by_bit(
    compared: list[dict[str, Any]], kind: str, draws: int, dtype: str
) -> None:
    found = [each for each in compared if (each["kind"], each["dtype"]) == (kind, dtype)]
    assert len(found) == 50
    assert {each["draws"] for each in found} == {draws}
    assert all(each["types"] and each["images"] and each["labels"] for each in found)
    shares = [each["share"] for each in found]
    assert min(shares) < 0.4
    assert max(shares) > 0.9
