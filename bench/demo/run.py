"""The whole pipeline in one command: synthetic data → pack → serve → train a ResNet → summary.

    python -m bench.demo --out demo [--quick] [--keep]

It runs what a user would run: ``feeder pack``, ``feeder serve`` and the reference job's ``train``
with a small ResNet. Data and datasets are in a temporary folder; however the demo ends, the daemon
is stopped and the folder removed.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.contact_sheet import draw_contact_sheet
from feeder.client.stats import request_counters
from feeder.errors import ConfigError, FeederError, ResourceError
from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.stop_signals import StopSignals

from ..daemon import DaemonProcess, feeder_command
from ..data.material import draw
from ..line_process import start_process, stop_process
from ..machine import describe_machine

if TYPE_CHECKING:  # torch is loaded late, see main
    import torch

    from trainer_client import Batch, FeederLoader

STATUS_TIMEOUT_S: Final = 10.0
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.:-=+*#"  # for terminals without Unicode
_CURVE_COLUMNS: Final = 40
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


QUICK: Final = DemoPlan(images=72, val_images=18, classes=3, image_size=64, batch_size=12)


def run_demo(plan: DemoPlan, folder: Path, out: Path) -> dict[str, Any]:
    """Run the demo in ``folder`` and draw ``out``/batch.png; return the summary's figures."""
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
    epochs, last, losses = result.epochs, result.epochs[-1], result.losses
    train_s = sum(epoch.seconds for epoch in epochs)
    trained_images = sum(epoch.images for epoch in epochs)
    tenth = max(1, len(losses) // 10)
    return {
        "images": plan.images + plan.val_images,
        "classes": plan.classes,
        "image_size": plan.image_size,
        "batch_size": plan.batch_size,
        "source_bytes": _bytes_below(folder / "images"),
        "packed_bytes": _bytes_below(folder / "train") + _bytes_below(folder / "val"),
        "draw_s": draw_s,
        "pack_s": pack_s,
        "serve_start_s": serve_start_s,
        "first_batch_s": (result.loader.first_batch_s if result.loader else None) or 0.0,
        "train_s": train_s,
        "eval_s": sum(epoch.val_s or 0.0 for epoch in epochs),
        "total_s": times_s[-1] - times_s[0],
        "trained_images": trained_images,
        "images_per_s": trained_images / train_s,
        "wait_share": sum(epoch.wait_share * epoch.seconds for epoch in epochs) / train_s,
        "losses": losses,
        "val_images": last.val_images,
        "val_correct": last.val_correct,
        "daemon": daemon,
        "machine": machine,
        "first_loss": statistics.fmean(losses[:tenth]),
        "last_loss": statistics.fmean(losses[-tenth:]),
        "accuracy": (last.val_correct or 0) / (last.val_images or 1),
    }


def summarise(figures: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Return the figures of ``run_demo`` in words."""
    rows = {
        "data": "{images:,} synthetic images of {classes} classes, {source_mb:,.0f} MB, drawn in "
        "{draw_s:.0f} s",
        "packing": "{rate:,.0f} images/s, {packed_mb:,.0f} MB ({share:.2f} of the original), "
        "lossless",
        "daemon": "ready {serve_start_s:.1f} s after its start",
        "first batch": "{first_batch_s:.2f} s after its request ({batch_size} images of "
        "{image_size} x {image_size})",
        "training": "{trained_images:,} images in {train_s:.0f} s: {images_per_s:,.0f} images/s "
        "end to end",
        "time": "{computing:.0%} of the training computing, {wait_share:.0%} waiting for data",
        "": "{stages}",
        "loss": "{curve}  {first_loss:.2f} at first, {last_loss:.2f} at last",
        "accuracy": "{val_correct:,} of {val_images:,} held-out images correct ({accuracy:.0%}; "
        "by chance {chance:.0%})",
        "in total": "{total_s:.0f} s: drawing {draw_s:.0f}, packing {pack_s:.0f}, starting "
        "{serve_start_s:.0f}, training {train_s:.0f}, evaluating {eval_s:.0f}",
    }
    values = {
        **figures,
        "source_mb": figures["source_bytes"] / 1e6,
        "packed_mb": figures["packed_bytes"] / 1e6,
        "share": figures["packed_bytes"] / figures["source_bytes"],
        "rate": figures["images"] / figures["pack_s"],
        "computing": 1 - figures["wait_share"],
        "chance": 1 / figures["classes"],
        "stages": _describe_stages(figures["daemon"]),
        "curve": _draw_curve(figures["losses"], _ASCII_BLOCKS if ascii_only else _BLOCKS),
    }
    lines = {name: text.format(**values) for name, text in rows.items()}
    return "".join(f"  {name:<14}{line}\n" for name, line in lines.items() if line)


def _draw_curve(values: Sequence[float], blocks: str) -> str:
    """Return ``values``, averaged to at most 40 columns, as bars between the least and greatest."""
    columns = min(_CURVE_COLUMNS, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [statistics.fmean(values[start:stop]) for start, stop in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    steps = (high - low) or 1.0
    return "".join(blocks[round((mean - low) / steps * (len(blocks) - 1))] for mean in means)


def _describe_stages(daemon: Mapping[str, Any]) -> str:
    """Return the workers' time in each stage of the sample path, in words; "" without any."""
    prefix, images = "stage_seconds.", daemon.get("images", 0)
    seconds = {
        name.removeprefix(prefix): value
        for name, value in daemon.items()
        if name.startswith(prefix)
    }
    total_s = sum(seconds.values())
    if not total_s or not images:
        return ""
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {value / total_s:.0%}" for name, value in shares)
    return f"a worker's image takes {total_s / images * 1e6:,.0f} us: {text}"


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
        figures = run_demo(plan, folder, out)
    text = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
    with explain_write_errors(str(out / "summary.json"), "use another --out"):
        write_output(out / "summary.json", text.encode())
    encoding = sys.stdout.encoding or "ascii"
    ascii_only = not encoding.lower().startswith("utf")
    print("\nWhat happened\n" + summarise(figures, ascii_only=ascii_only))
    print(f"The first batch is in {out / 'batch.png'}, the numbers are in {out / 'summary.json'}.")
    if figures["last_loss"] >= LEARNED * figures["first_loss"]:
        sys.stderr.write("demo: error: the loss did not fall enough; see the numbers above\n")
        return 1
    return 0
