"""``feeder-bench gpu``: a real run on the CPU, what fails each check, the use of CUDA events."""

import inspect
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench import cli
from bench.gpu import bandwidth, device, exactness, slots, step
from bench.gpu.device import DeviceClock
from bench.report import Result, single, summarise
from tests.support.daemon import pack_small
from trainer_client._device import Normaliser
from trainer_client._staging import PageLocks

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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    assert main([str(pack_small(tmp_path)), *QUICK, "--json", str(out)]) == 0
    report = json.loads(out.read_text("utf-8"))
    assert report["bench"] == "gpu"
    assert report["failures"] == []
    assert [(each["name"], each["verdict"]) for each in report["checks"]] == [
        ("exactness", "passed"),
        ("bandwidth", "not judged on a CPU"),
        ("slots", "not judged on a CPU"),
        ("step", "not judged on a CPU"),
    ]
    rows = {row["name"]: row for row in report["results"]}
    assert rows["exactness/ways"]["value"] == 9 * 3 * 2 * 2
    for kind in ("float16-4", "float16-3", "bfloat16-4", "bfloat16-3", "float32-4", "float32-3"):
        row = rows[f"bandwidth/{kind}"]
        assert (row["unit"], row["baseline"]) == ("GB/s", f"bandwidth/copy-{kind}")
        assert row["ratio"] > 0
    assert (rows["slots/slot"]["unit"], rows["slots/slot"]["baseline"]) == (
        "GB/s",
        "slots/ordinary",
    )
    assert rows["slots/in-place"]["baseline"] == "slots/copied"
    assert rows["step/fed"]["baseline"] == "step/resident"
    assert rows["step/stall"]["value"] < 100
    assert 0 <= rows["step/wait"]["value"] <= 100
    assert rows["step/feeder-alone"]["baseline"] == "step/needed"
    text = capsys.readouterr().out
    assert text.startswith("feeder-bench gpu passed: exactness passed; bandwidth, slots, step not")
    assert "  device: cpu, 1 threads" in text


def test_a_wrong_mean_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exactness, "Normaliser", partial(Normaliser, mean=(0.486, 0.456, 0.406)))
    assert main([*QUICK, "--only", "exactness"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("feeder-bench gpu failed: exactness failed")
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


def test_what_else_is_wrong_with_a_result_is_named() -> None:
    images, exact = normalised(torch.float32)
    compare = partial(exactness.compare, exact=exact, channels=4, dtype=torch.float32)
    assert compare(images.contiguous())[2] == "the result is not channels_last"
    assert compare(images.half())[2] == "the result is torch.float16 of shape (2, 4, 9, 9)"
    assert compare(images[:, :3])[2] == "the result is torch.float32 of shape (2, 3, 9, 9)"
    assert compare(images[..., 1:])[2] == "the result is torch.float32 of shape (2, 4, 9, 8)"
    for value in (1e-30, float("nan")):
        spoiled = images.clone()
        spoiled[0, 3, 0, 0] = value
        assert compare(spoiled)[2] == "the fourth channel is not 0"
    for value in (float("nan"), float("inf")):
        spoiled = images.clone()
        spoiled[0, 1, 0, 0] = value
        error, error_ulp, problem = compare(spoiled)
        assert str(problem).startswith(f"{value} instead of ")
        assert np.isfinite([error, error_ulp]).all()  # as JSON's numbers are


def test_the_unit_in_the_last_place() -> None:
    values = {torch.float32: [1.0], torch.float16: [-1.5, 0.0, 1e-6], torch.bfloat16: [2.0, 0.999]}
    units = [unit for dtype, of in values.items() for unit in exactness.ulp(np.array(of), dtype)]
    subnormal = 2**-24
    assert units == [2**-23, 2**-10, subnormal, subnormal, 2**-6, 2**-8]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--device cuda:99 --only exactness", "device 'cuda:99' cannot be used here ("),
        ("--device meta --only exactness", "device 'meta' cannot be used here ("),
        ("--device nonsense --only exactness", "device 'nonsense' cannot be used here ("),
        ("--only speed", "--only speed is no check: name some of exactness, bandwidth"),
        ("--images 4 --batch-size 8", "--images 4 are fewer than a batch of 8"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", *line.split()]) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"feeder-bench: error: {complaint}")
    assert printed.endswith("): pass --device cpu") or "cannot be used" not in printed


def test_a_batch_larger_than_the_dataset_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = pack_small(tmp_path)
    assert main([str(dataset), *QUICK, "--batch-size", "54", "--only", "slots"]) == 2
    assert "has 53 samples, fewer than a batch of 54" in capsys.readouterr().err


def against(ratio: float, name: str = "bandwidth/float16-4") -> Result:
    """A row of 100 × ratio GB/s, beside a baseline of 100."""
    base = summarise("base", "GB/s", [100.0])
    return summarise(name, "GB/s", [100 * ratio], baseline=base, baseline_values=[100.0])


def refused(count: int) -> Result:
    return single("slots/page-locks-refused", "slots", count)


@pytest.mark.parametrize(
    ("ratios", "verdict", "ending"),
    [
        ((0.97, 0.86), "passed", "86 % of a copy (target: 85 %)"),
        ((0.97, 0.815), "failed", "82 % of a copy (target: 85 %), 3.5 points too little"),
    ],
)
def test_the_slowest_type_decides_about_bandwidth(
    ratios: tuple[float, ...], verdict: str, ending: str
) -> None:
    rows = [against(each) for each in ratios]
    check = bandwidth.judge_bandwidth(rows, "cuda")
    assert check.verdict == verdict
    assert check.sentence.endswith(ending)
    assert bandwidth.judge_bandwidth(rows, "cpu").verdict == "not judged on a CPU"
    rows.append(single("bandwidth/compile-failures", "ways", 2))
    check = bandwidth.judge_bandwidth(rows, "cuda")
    assert check.sentence.endswith("; torch could not compile 2 of them")


@pytest.mark.parametrize(("ratio", "verdict"), [(0.9, "passed"), (0.5, "failed")])
def test_copies_from_slots_are_judged_against_pinned_memory(ratio: float, verdict: str) -> None:
    check = slots.judge_slots([against(ratio, "slots/slot"), refused(0)], None, "cuda")
    assert check.verdict == verdict
    assert f"{100 * ratio:.0f} % of a copy from pinned memory (target: 90 %)" in check.sentence
    assert ("40.0 points too little" in check.sentence) == (verdict == "failed")


def test_a_wrong_copy_fails_the_check_on_any_device() -> None:
    pixels = [torch.full((2, 4), number, dtype=torch.int8) for number in (1, 2)]
    assert slots.find_wrong_copy(pixels, torch.empty(2, 4, dtype=torch.int8)) is None
    narrow = torch.empty(2, 4, dtype=torch.bool)  # where 2 becomes 1
    problem = slots.find_wrong_copy(pixels, narrow)
    assert problem is not None
    check = slots.judge_slots([against(1, "slots/slot"), refused(0)], problem, "cpu")
    assert check.verdict == "failed"
    assert check.sentence.endswith(problem)


def test_slots_that_cuda_does_not_lock_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = SimpleNamespace(cudaHostRegister=lambda address, size_bytes, flags: 801)
    locks = PageLocks(refusing, lambda: None)
    stage = SimpleNamespace(_locks=locks, counters=lambda: {"page_locks_refused": locks.refused})
    monkeypatch.setattr(slots, "CudaStage", lambda normaliser: stage)
    monkeypatch.setattr(slots, "Normaliser", lambda device, dtype: None)
    layout = SimpleNamespace(slot_bytes=4096)
    held = [
        SimpleNamespace(is_page_locked=None, address=0, memory=SimpleNamespace(layout=layout))
        for _ in range(3)
    ]
    count = slots.lock_slots(torch.device("cuda", 0), held)  # type: ignore[arg-type]
    assert count == 3
    check = slots.judge_slots([against(0.5, "slots/slot"), refused(count)], None, "cuda")
    assert check.sentence.endswith("; CUDA refused to lock the pages of 3 slots")


def taken(resident_s: float, fed_s: float, wait_s: float, alone_s: float) -> dict[str, list[float]]:
    """Times that are the same in three rounds."""
    times = {"resident": resident_s, "fed": fed_s, "wait": wait_s, "alone": alone_s}
    return {name: [value] * 3 for name, value in times.items()}


@pytest.mark.parametrize(
    ("times", "verdict", "parts"),
    [
        (
            taken(0.1, 0.1005, 0.0001, 0.05),
            "passed",
            ["stalled 0.50 % (target: under 1 %); alone, a feeder with 2 workers delivers 2,000 "],
        ),
        (
            taken(0.1, 0.2, 0.1, 0.2),
            "failed",
            [
                "stalled 50.00 % (target: under 1 %), 49.00 points too much",
                "500 images/s, 0.50 times the 1,000 of the step: this host's cores limit, about 4 ",
                "; the feeder reports: decoding",
            ],
        ),
        (
            taken(0.1, 0.2, 0.02, 0.05),
            "failed",
            ["; the loader waited 10.00 % of the time, so the copy, normalising or the host's "],
        ),
        (
            taken(0.1, 0.2, 0.1, 0.05),
            "failed",
            ["waited 50.00 % of the time: beside the step, the feeder has too little of the host"],
        ),
    ],
)
def test_a_stalled_step_fails_with_what_limits(
    times: dict[str, list[float]], verdict: str, parts: list[str]
) -> None:
    check = step.judge_step(times, 100, 2, "decoding", device_type="cuda")
    assert check.verdict == verdict
    for part in parts:
        assert part in check.sentence
    assert ("too much" in check.sentence) == (verdict == "failed")
    assert step.judge_step(times, 100, 2, "", device_type="cpu").verdict == "not judged on a CPU"


class FakeEvent:
    """A CUDA event of a device whose time is the number of things done."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.at = 0

    def record(self) -> None:
        self._log.append("record")
        self.at = len(self._log)

    def synchronize(self) -> None:
        self._log.append("wait")

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 1000.0 * (end.at - self.at)


@pytest.mark.parametrize("is_queued", [False, True])
def test_cuda_events_enclose_the_work_alone(
    is_queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def make_event(*, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(log)

    monkeypatch.setattr(torch.cuda, "Event", make_event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    monkeypatch.setattr(DeviceClock, "_keep_busy", lambda self: log.append("busy"))
    clock = DeviceClock(torch.device("cuda", 0))
    for _ in range(2):
        clock.run(lambda: log.append("work"), is_queued=is_queued)
    busy = ["busy"] if is_queued else []
    assert log == 2 * ["synchronize", *busy, "record", "work", "record", "wait"]
    assert clock() == 2 * 2.0


def test_the_clock_of_a_cpu_stands_still_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    clock = DeviceClock(CPU)
    assert clock() == 0
    clock.run(lambda: None)
    clock.run(lambda: None, is_queued=True)
    assert clock() == 1.75


def test_turns_have_every_contender_in_every_round() -> None:
    calls: dict[str, list[int]] = {"a": [], "b": []}
    seconds = device.time_in_turns(
        {name: numbers.append for name, numbers in calls.items()},
        DeviceClock(CPU),
        rounds=3,
        repeats=2,
    )
    assert calls == {"a": [0, 1] * 4, "b": [0, 1] * 4}  # a first pass is not counted
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_torchs_cuda_event_has_the_calls_of_the_fake_one() -> None:
    """torch's Python side is there without a device, too."""
    fake, real = FakeEvent, torch.cuda.Event
    inspect.signature(real.__new__).bind(real, enable_timing=True)
    for name in ("record", "synchronize", "elapsed_time"):
        arguments = list(inspect.signature(getattr(fake, name)).parameters)
        inspect.signature(getattr(real, name)).bind(*arguments)
