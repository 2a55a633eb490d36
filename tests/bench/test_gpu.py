"""``feeder-bench gpu``: a real run on the CPU, what fails each check, the use of CUDA events."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import cli
from bench.gpu import copies, exactness, step
from bench.report import Result, single, summarise
from tests.bench.rows import check_rows, group
from trainer_client._device import Normaliser

torch.set_num_threads(1)

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--batch-size", "8", "--rounds", "1", "--steps", "1"]


def main(arguments: list[str]) -> int:
    return cli.main(["gpu", *arguments])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets this variable where it is not set."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


def test_a_run_on_a_cpu_judges_exactness_and_measures_the_rest(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    assert main([str(dataset), *QUICK, "--json", str(out)]) == 0
    report = json.loads(out.read_text("utf-8"))
    assert (report["bench"], report["failures"]) == ("gpu", [])
    verdicts = {each["name"]: each["verdict"] for each in report["checks"]}
    others = dict.fromkeys(("bandwidth", "slots", "step"), "not judged on a CPU")
    assert verdicts == {"exactness": "passed", **others}
    expected = group("ms", "step/resident", "step/fed")
    expected |= group("images/s", "step/needed", "step/feeder-alone")
    expected |= dict.fromkeys(("step/stall", "step/wait"), ("% of the step", None))
    expected |= group("GB/s", "slots/ordinary", "slots/slot")
    expected |= group("ms", "slots/copied", "slots/in-place")
    expected |= {"slots/page-locks-refused": ("slots", None)}
    for kind in ("float16", "bfloat16", "float32"):
        expected |= {f"exactness/{kind}": ("ulp", None)}
        expected |= {f"exactness/{kind}-absolute": ("1e-6", None)}
        for way in (f"{kind}-4", f"{kind}-3"):
            expected |= group("GB/s", f"bandwidth/copy-{way}", f"bandwidth/{way}")
    counts = ("exactness/ways", "exactness/wrong", "exactness/compile-failures")
    expected |= dict.fromkeys((*counts, "bandwidth/compile-failures"), ("ways", None))
    rows = check_rows(report, expected)
    assert rows["exactness/ways"]["value"] == 9 * 3 * 2 * 2
    assert rows["step/stall"]["value"] < 100
    assert 0 <= rows["step/wait"]["value"] <= 100
    text = capsys.readouterr().out
    assert text.startswith(
        "feeder-bench gpu passed\nexactness: passed; largest error of 108 ways: "
    )
    assert "  device: cpu, 1 threads" in text


def test_a_wrong_mean_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exactness, "Normaliser", partial(Normaliser, mean=(0.486, 0.456, 0.406)))
    assert main([*QUICK, "--only", "exactness"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("feeder-bench gpu failed\nexactness: failed; ")
    (line,) = [each for each in output.err.splitlines() if "failed" in each]
    assert line.startswith("feeder-bench: failed: exactness: largest error of 108 ways: ")
    assert "; 108 of them are wrong, int8-hwc-rgb to 4 channels of torch.float16, " in line


def normalised(dtype: torch.dtype, channels: int = 4) -> tuple[torch.Tensor, np.ndarray]:
    """Images of random levels by the product, and their exact values."""
    levels = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), np.uint8)
    pixels = torch.from_numpy((levels ^ 0x80).view(np.int8))
    return Normaliser(CPU, dtype, channels=channels)(pixels), exactness.exact_values(levels)


@pytest.mark.parametrize("dtype", exactness.DTYPES)
def test_an_error_of_one_unit_in_the_last_place_is_found(dtype: torch.dtype) -> None:
    images, exact = normalised(dtype)
    assert exactness.compare(images, exact, 4, dtype)[2] is None
    at = (1, 2, 3, 4)
    up = 1.0 if images[at] > 0 else -1.0
    if dtype == torch.float32:  # which has the arithmetic's own error, of several units
        images[at] += 1e-6
    else:
        images[at] += up * float(exactness.ulp(np.array(images[at].item()), dtype))
    error, error_ulp, problem = exactness.compare(images, exact, 4, dtype)
    assert error > 5e-7
    assert error_ulp > 0.5
    assert problem is not None
    value = exact[1, 3, 4, 2]
    assert problem.endswith(f" instead of {value:.6g}")


def against(ratio: float, name: str = "bandwidth/float16-4") -> Result:
    """A row of 100 × ratio GB/s, beside a baseline of 100."""
    base = summarise("base", "GB/s", [100.0])
    return summarise(name, "GB/s", [100 * ratio], baseline=base, baseline_values=[100.0])


@pytest.mark.parametrize(
    ("ratio", "verdict", "ending"),
    [
        (0.86, "passed", "86 % of a copy (target: 85 %)"),
        (0.815, "failed", "82 % of a copy (target: 85 %), 3.5 points too little"),
    ],
)
def test_the_slowest_type_decides_about_bandwidth(ratio: float, verdict: str, ending: str) -> None:
    rows = [against(0.97), against(ratio)]
    check = copies.judge_bandwidth(rows, "cuda")
    assert check.verdict == verdict
    assert check.sentence.endswith(ending)
    assert copies.judge_bandwidth(rows, "cpu").verdict == "not judged on a CPU"
    rows.append(single("bandwidth/compile-failures", "ways", 2))
    check = copies.judge_bandwidth(rows, "cuda")
    assert check.sentence.endswith("; torch could not compile 2 of them")


def test_copies_from_slots_are_judged_and_a_wrong_one_fails_on_any_device() -> None:
    rows = [against(0.9, "slots/slot"), single("slots/page-locks-refused", "slots", 0)]
    check = copies.judge_slots(rows, None, "cuda")
    assert check.verdict == "passed"
    assert "90 % of a copy from pinned memory (target: 90 %)" in check.sentence
    pixels = [torch.full((2, 4), number, dtype=torch.int8) for number in (1, 2)]
    assert copies.find_wrong_copy(pixels, torch.empty(2, 4, dtype=torch.int8)) is None
    narrow = torch.empty(2, 4, dtype=torch.bool)  # where 2 becomes 1
    problem = copies.find_wrong_copy(pixels, narrow)
    assert problem is not None
    check = copies.judge_slots(rows, problem, "cpu")
    assert (check.verdict, check.sentence.endswith(problem)) == ("failed", True)


@pytest.mark.parametrize(
    ("times", "verdict", "parts"),
    [
        (
            (0.1, 0.1005, 0.0001, 0.05),
            "passed",
            ["stalled 0.50 % (target: under 1 %); alone, a feeder with 2 workers delivers 2,000 "],
        ),
        (
            (0.1, 0.2, 0.1, 0.2),
            "failed",
            [
                "stalled 50.00 % (target: under 1 %), 49.00 points too much",
                "500 images/s, 0.50 times the 1,000 of the step: this host's cores limit, about 4 ",
                "; the feeder reports: decoding",
            ],
        ),
        (
            (0.1, 0.2, 0.02, 0.05),
            "failed",
            ["; the loader waited 10.00 % of the time, so the copy, normalising or the host's "],
        ),
    ],
)
def test_a_stalled_step_fails_with_what_limits(
    times: tuple[float, ...], verdict: str, parts: list[str]
) -> None:
    seconds = zip(("resident", "fed", "wait", "alone"), times, strict=True)
    taken = {name: [value] * 3 for name, value in seconds}
    check = step.judge_step(taken, 100, 2, "decoding", device_type="cuda")
    assert check.verdict == verdict
    for part in parts:
        assert part in check.sentence
    assert ("too much" in check.sentence) == (verdict == "failed")
    assert step.judge_step(taken, 100, 2, "", device_type="cpu").verdict == "not judged on a CPU"
