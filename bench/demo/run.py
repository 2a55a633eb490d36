"""The whole pipeline in one command: synthetic data → pack → serve → train a ResNet → summary.

    python -m bench.demo --out demo [--quick] [--keep]

It runs what a user would run: ``feeder pack``, ``feeder serve`` and the reference job's ``train``
with a small ResNet. Data and datasets are in a temporary folder; however the demo ends, the daemon
is stopped and the folder removed.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feeder.cli.contact_sheet import draw_contact_sheet
from feeder.client.stats import request_counters
from feeder.errors import ConfigError, FeederError, ResourceError
from feeder.process.stop_signals import StopSignals

from ..daemon import DaemonProcess, feeder_command
from ..data.material import draw
from ..line_process import start_process, stop_process
from ..machine import describe_machine
from .report import DemoReport

if TYPE_CHECKING:  # torch is loaded late, see main
    import torch

    from trainer_client import Batch, FeederLoader

STATUS_TIMEOUT_S: Final = 10.0
LEARNED: Final = 0.8  # the loss must fall below this share of its first value


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The sizes of the demo; the defaults take a little over a minute on two cores."""

    images: int = 1000
    val_images: int = 200
    classes: int = 10
    image_size: int = 96
    batch_size: int = 32
    epochs: int = 12


QUICK: Final = DemoPlan(images=72, val_images=18, classes=3, image_size=64, batch_size=12, epochs=4)


def run_demo(plan: DemoPlan, folder: Path, out: Path) -> DemoReport:
    """Run the demo in ``folder``; draws ``out``/batch.png, ``_run`` writes ``out``/summary.json."""
    from trainer_client.train import TrainingOptions, TrainingRecipe, train

    machine = describe_machine()
    times_s = [time.monotonic()]

    def finish_stage() -> float:
        times_s.append(time.monotonic())
        return times_s[-1] - times_s[-2]

    _log("drawing synthetic images")
    for name, images, seed in (("train", plan.images, 0), ("val", plan.val_images, 1)):
        draw(folder / "images" / name, images=images, classes=plan.classes, seed=seed)
    draw_s = finish_stage()
    _log("packing them")
    for name in ("train", "val"):
        run_feeder("pack", str(folder / "images" / name), str(folder / name))
    pack_s = finish_stage()
    endpoint = f"ipc://{folder}/feeder"
    _log("serving them")
    with serving({name: folder / name for name in ("train", "val")}, endpoint) as ready:
        serve_start_s = finish_stage()
        _log(ready)
        _log("training a small ResNet on them")
        options = TrainingOptions(
            endpoint=endpoint,
            dataset="train",
            val_dataset="val",
            recipe=TrainingRecipe(
                model="small",
                epochs=plan.epochs,
                lr=0.1,
                weight_decay=5e-4,
                warmup_epochs=1.0,
                image_size=plan.image_size,
            ),
            batch_size=plan.batch_size,
            device="cpu",
        )
        result = train(
            options,
            report=_log,
            on_batch=lambda batch, loader: _draw_first_batch(batch, loader, out),
        )
        daemon = request_counters(endpoint, STATUS_TIMEOUT_S)
    finish_stage()
    epochs, last = result.epochs, result.epochs[-1]
    train_s = sum(epoch.seconds for epoch in epochs)
    trained_images = sum(epoch.images for epoch in epochs)
    return DemoReport(
        images=plan.images + plan.val_images,
        classes=plan.classes,
        image_size=plan.image_size,
        batch_size=plan.batch_size,
        source_bytes=_bytes_below(folder / "images"),
        packed_bytes=_bytes_below(folder / "train") + _bytes_below(folder / "val"),
        draw_s=draw_s,
        pack_s=pack_s,
        serve_start_s=serve_start_s,
        first_batch_s=(result.loader.first_batch_s if result.loader else None) or 0.0,
        train_s=train_s,
        eval_s=sum(epoch.val_s or 0.0 for epoch in epochs),
        total_s=times_s[-1] - times_s[0],
        trained_images=trained_images,
        images_per_s=trained_images / train_s,
        wait_share=sum(epoch.wait_share * epoch.seconds for epoch in epochs) / train_s,
        losses=result.losses,
        val_images=last.val_images or 0,
        val_correct=last.val_correct or 0,
        daemon=daemon,
        machine=machine,
    )


def run_feeder(*arguments: str) -> None:
    """Run a ``feeder`` command to its end; ResourceError when it fails (it logs why to stderr)."""
    process = start_process(feeder_command(*arguments))
    try:
        status = process.wait()
    finally:
        stop_process(process)
    if status != 0:
        raise ResourceError(f"`feeder {' '.join(arguments)}` ended with status {status}")


@contextmanager
def serving(datasets: Mapping[str, Path], endpoint: str) -> Iterator[str]:
    """Serve ``datasets`` at ``endpoint``; gives the daemon's line that reports readiness.

    Raises ResourceError with the daemon's last log line when it is not ready in time, or does not
    end with status 0 afterwards.
    """
    data = [text for name, path in datasets.items() for text in ("--data", f"{name}={path}")]
    daemon = DaemonProcess(feeder_command("serve", *data, "--bind", endpoint))
    try:
        yield daemon.await_ready().removeprefix("feeder: ")
    finally:
        daemon.terminate()
    if daemon.process.returncode != 0:
        raise ResourceError(
            f"`feeder serve` ended with status {daemon.process.returncode}; "
            f"its last log line: {daemon.last_log_line()}"
        )


def _draw_first_batch(batch: "Batch[torch.Tensor]", loader: "FeederLoader", out: Path) -> None:
    """Draw the job's first batch as the model sees it, from the model's own input tensor."""
    from trainer_client import denormalise

    if (batch.epoch, batch.index) != (0, 0):
        return
    captions = [loader.classes[label] for label in batch.labels[: batch.valid].tolist()]
    pixels = denormalise(batch.images[: batch.valid]).numpy()
    title = f"batch {batch.index} of epoch {batch.epoch} as the model sees it"
    draw_contact_sheet(pixels, captions, out / "batch.png", title=title)


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _log(line: str) -> None:
    print(f"demo: {line}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description="Synthetic data, pack, serve, train, summary."
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--keep", action="store_true", help="keep the data and the dataset")
    options = parser.parse_args(arguments)
    # Read when torch is loaded. Its threads share the cores with the daemon; by default they spin
    # while they wait for each other, which made training on two busy cores five times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with StopSignals() as signals:
        try:
            return _run(QUICK if options.quick else DemoPlan(), options.out, options.keep)
        except FeederError as error:
            sys.stderr.write(f"demo: error: {error}\n")
            return error.exit_status
        except KeyboardInterrupt:
            sys.stderr.write("demo: interrupted, everything is stopped and removed\n")
            return signals.exit_status


def _run(plan: DemoPlan, out: Path, keep: bool) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be a folder ({error.strerror}): name another one"
        ) from None
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="feeder-demo-"))
        if keep:
            _log(f"data and dataset stay in {folder}")
        else:
            stack.callback(shutil.rmtree, folder)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torch")  # torch makes it unasked
        report = run_demo(plan, folder, out)
    report.write_json(out / "summary.json")
    encoding = sys.stdout.encoding or "ascii"
    print("\nWhat happened\n" + report.to_text(ascii_only=not encoding.lower().startswith("utf")))
    print(f"The first batch is in {out / 'batch.png'}, the numbers are in {out / 'summary.json'}.")
    if report.last_loss >= LEARNED * report.first_loss:
        sys.stderr.write("demo: error: the loss did not fall enough; see the numbers above\n")
        return 1
    return 0
