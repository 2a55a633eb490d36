"""The demo: its summary, and that it leaves nothing behind however it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from PIL import Image

from bench.demo import run as demo
from feeder.errors import ConfigError
from tests.support.daemon import wait_until

ROOT = Path(__file__).resolve().parents[2]


FIGURES: dict[str, Any] = {
    "images": 1200,
    "classes": 10,
    "image_size": 96,
    "batch_size": 32,
    "source_bytes": 129_000_000,
    "packed_bytes": 134_160_000,
    "draw_s": 12.4,
    "pack_s": 6.0,
    "serve_start_s": 1.5,
    "first_batch_s": 0.123,
    "train_s": 30.0,
    "eval_s": 4.0,
    "total_s": 58.0,
    "trained_images": 12_000,
    "images_per_s": 400.0,
    "wait_share": 0.08,
    "losses": [3.0] * 10 + [2.0] * 80 + [1.0] * 10,
    "first_loss": 3.0,
    "last_loss": 1.0,
    "val_images": 200,
    "val_correct": 158,
    "accuracy": 0.79,
    "daemon": {"images": 1000, "stage_seconds.decode": 0.9, "stage_seconds.resize": 0.3},
}


def test_the_summary_has_all_figures() -> None:
    text = demo.summarise(FIGURES)
    for part in (
        "1,200 synthetic images of 10 classes, 129 MB, drawn in 12 s",
        "200 images/s, 134 MB (1.04 of the original), lossless",
        "ready 1.5 s after its start",
        "0.12 s after its request (32 images of 96 x 96)",
        "12,000 images in 30 s: 400 images/s end to end",
        "92% of the training computing, 8% waiting for data",
        "a worker's image takes 1,200 us: decode 75%, resize 25%",
        "3.00 at first, 1.00 at last",
        "158 of 200 held-out images correct (79%; by chance 10%)",
    ):
        assert part in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "worker" not in demo.summarise({**FIGURES, "daemon": {}})
    assert demo.summarise(FIGURES, ascii_only=True).isascii()


def test_an_out_path_that_cannot_be_a_folder_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # main sets it; this undoes that
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", Path("/proc/demo")):
        assert demo.main(["--quick", "--out", str(out)]) == ConfigError.exit_status
        printed = capsys.readouterr()
        assert f"demo: error: --out {out} cannot be a folder (" in printed.err
        assert printed.out == "", "nothing was started"


@contextmanager
def running_demo(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the quick demo in its own session, with ``folder``/tmp for temporary files."""
    (folder / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.demo", "--quick", "--out", str(folder / "out")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    shared_memory = set(os.listdir("/dev/shm"))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert list((folder / "tmp").iterdir()) == [], "temporary files are left behind"
    more = set(os.listdir("/dev/shm")) - shared_memory  # parallel tests' files go away soon
    wait_until(lambda: not more & set(os.listdir("/dev/shm")), "no shared memory is left behind")


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a path short enough for sockets, however long the test's name."""
    return tmp_path_factory.mktemp("d")


def test_a_loss_that_does_not_fall_enough_fails(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the training is real."""
    epoch = SimpleNamespace(
        seconds=2.0, images=8, val_s=0.5, wait_share=0.25, val_images=4, val_correct=3
    )

    def train(options: Any, *, report: Any, on_batch: Any) -> SimpleNamespace:
        assert (options.dataset, options.val_dataset) == ("train", "val")
        return SimpleNamespace(epochs=[epoch, epoch], losses=[1.0, 0.9], loader=None)

    stub = SimpleNamespace(TrainingOptions=SimpleNamespace, TrainingRecipe=dict, train=train)
    monkeypatch.setitem(sys.modules, "trainer_client.train", stub)
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # the demo sets it; this undoes that
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(demo, "QUICK", demo.DemoPlan(images=4, val_images=2, classes=2))
    out = short_path / "out"
    assert demo.main(["--quick", "--out", str(out)]) == 1
    assert [path.name for path in short_path.iterdir()] == ["out"]
    figures = json.loads((out / "summary.json").read_text())
    assert figures["images_per_s"] == 16 / 4
    assert figures["wait_share"] == 0.25
    assert figures["packed_bytes"] > 0
    assert "the loss did not fall enough" in capsys.readouterr().err


@pytest.mark.extensive("15 s of a real training; all around it is tested in process")
def test_the_demo_runs_to_its_summary(short_path: Path) -> None:
    with running_demo(short_path) as process:
        output, error = process.communicate(timeout=170)
        assert process.returncode == 0, output + error
    assert "images/s end to end" in output
    out = short_path / "out"
    figures = json.loads((out / "summary.json").read_text())
    assert (figures["trained_images"], figures["val_images"]) == (12 * 72, 18)
    assert figures["last_loss"] < figures["first_loss"]
    assert [name for name in figures["daemon"] if name.startswith("batches_failed")] == []
    with Image.open(out / "batch.png") as sheet:
        assert sheet.width > 400
    assert sorted(path.name for path in out.iterdir()) == ["batch.png", "summary.json"]


@pytest.mark.extensive("starts the demo in a process")
def test_a_signal_leaves_nothing_behind(short_path: Path) -> None:
    with running_demo(short_path) as process:
        deadline_s = time.monotonic() + 60
        while sum(1 for _ in short_path.rglob("*.jpg")) < 24:  # by then all its processes run
            assert time.monotonic() < deadline_s, "the demo draws nothing"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, error = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, error
        assert error.endswith("demo: interrupted, everything is stopped and removed\n")
        assert "Traceback" not in error
        _, alive = psutil.wait_procs(family, timeout=30)
        assert alive == []
    assert not (short_path / "out" / "summary.json").exists()
