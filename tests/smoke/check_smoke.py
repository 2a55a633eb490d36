"""The smoke recipe learns, whatever the seed, and a killed run ends with the same weights."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.support.daemon import wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders of the runs, by seed."""
    return {seed: tmp_path_factory.mktemp("smoke") / f"seed-{seed}" for seed in SEEDS}


def start(folder: Path, seed: int, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "trainer_client.train", "--recipe", "smoke"]
    command += ["--output", str(folder), "--seed", str(seed), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_nine_of_ten_are_right_in_under_five_minutes(folders: dict[int, Path], seed: int) -> None:
    """Data, feeder and interpreter included, from nothing."""
    folder, start_s = folders[seed], time.monotonic()
    with start(folder, seed) as process:
        output, error = process.communicate(timeout=2 * LIMIT_S)
    seconds = time.monotonic() - start_s
    assert process.returncode == 0, error
    summary = json.loads((folder / "summary.json").read_text())
    sys.stdout.write(
        f"seed {seed}: {summary['val_top1']:.1%} after {summary['epochs']} epochs, "
        f"{seconds:.0f} s, {summary['images_per_s']:,.0f} images/s, "
        f"waited {summary['wait_share']:.1%}\n"
    )
    assert summary["val_top1"] >= 0.9
    assert seconds < LIMIT_S
    assert {"val_top1", "images_per_s", "wait_share", "epochs"} <= set(summary)
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "checkpoints" / "best.pt").exists()
    assert "finished after 16 epochs" in output
    assert feeders_of(folder) == []


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_weights(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    """In the middle of epochs and evaluations; while it packs, and while it reads a checkpoint."""
    whole, folder = folders[0], tmp_path / "killed"
    more = ("--resume", "auto", "--checkpoint-steps", "37")
    pause = random.Random(7)
    for kill in range(8):
        with start(folder, 0, *more) as process:
            known = newest(folder)
            if kill == 0:
                wait_until((folder / "data").exists, "it makes its data")
            elif kill == 1:
                wait_until(lambda: (folder / "data" / "train").exists(), "it packs")
            else:
                wait_for_checkpoint(folder, known)
                time.sleep(pause.uniform(0, 3))  # anywhere until the next one
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: feeders_of(folder) == [], "its processes are gone")
    with start(folder, 0, *more) as process:
        output, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    assert "resumed from " in output
    for name in ("weights.pt", "weights-averaged.pt"):
        one, two = (torch.load(each / name, weights_only=True) for each in (whole, folder))
        assert list(one) == list(two)
        assert all(torch.equal(value, two[key]) for key, value in one.items()), name
    columns = slice(6, 8)  # loss and lr
    tables = [
        [line.split(",")[columns] for line in (each / "epochs.csv").read_text().splitlines()]
        for each in (whole, folder)
    ]
    assert tables[0] == tables[1]
    shutil.rmtree(folder / "data")


def wait_for_checkpoint(folder: Path, known: str) -> None:
    wait_until(lambda: newest(folder) != known, f"one after {known}", deadline_s=LIMIT_S)


def newest(folder: Path) -> str:
    names = (path.name for path in folder.glob("checkpoints/epoch-*.pt"))
    return max(names, default="")


def feeders_of(folder: Path) -> list[int]:
    """Return the processes that work on the data of a run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder / "data") in argument for argument in line):
            found.append(process.pid)
    return found
