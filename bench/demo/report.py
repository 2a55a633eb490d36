"""The demo's summary: the numbers as text and as JSON."""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from feeder.process.output_file import explain_write_errors, write_output

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.:-=+*#"  # for terminals without Unicode
_SPARKLINE_COLUMNS: Final = 40
_STAGE_PREFIX: Final = "stage_seconds."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The results of one run of the demo; seconds are wall-clock."""

    images: int
    classes: int
    image_size: int
    batch_size: int
    source_bytes: int
    packed_bytes: int
    draw_s: float
    pack_s: float
    serve_start_s: float
    first_batch_s: float
    train_s: float
    eval_s: float
    total_s: float
    trained_images: int
    images_per_s: float
    wait_share: float
    losses: Sequence[float]
    val_images: int
    val_correct: int
    daemon: Mapping[str, int | float | str]
    machine: Mapping[str, object]

    @property
    def first_loss(self) -> float:
        """Mean loss over the first tenth of the steps."""
        return statistics.fmean(self.losses[: max(1, len(self.losses) // 10)])

    @property
    def last_loss(self) -> float:
        """Mean loss over the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(1, len(self.losses) // 10) :])

    @property
    def accuracy(self) -> float:
        """Share of the held-out images that were classified correctly."""
        return self.val_correct / self.val_images

    def write_json(self, path: Path) -> None:
        """Write all fields and the figures derived from them; ResourceError when that fails."""
        figures = {name: getattr(self, name) for name in ("first_loss", "last_loss", "accuracy")}
        text = json.dumps(asdict(self) | figures, indent=1, ensure_ascii=False) + "\n"
        with explain_write_errors(str(path), "use another --out"):
            write_output(path, text.encode())

    def to_text(self, *, ascii_only: bool = False) -> str:
        curve = draw_sparkline(self.losses, ascii_only=ascii_only)
        rate, share = self.images / self.pack_s, self.packed_bytes / self.source_bytes
        rows = {
            "data": f"{self.images:,} synthetic images of {self.classes} classes, "
            f"{self.source_bytes / 1e6:,.0f} MB, drawn in {self.draw_s:.0f} s",
            "packing": f"{rate:,.0f} images/s, {self.packed_bytes / 1e6:,.0f} MB "
            f"({share:.2f} of the original), lossless",
            "daemon": f"ready {self.serve_start_s:.1f} s after its start",
            "first batch": f"{self.first_batch_s:.2f} s after its request ({self.batch_size} "
            f"images of {self.image_size} x {self.image_size})",
            "training": f"{self.trained_images:,} images in {self.train_s:.0f} s: "
            f"{self.images_per_s:,.0f} images/s end to end",
            "time": f"{1 - self.wait_share:.0%} of the training computing, {self.wait_share:.0%} "
            "waiting for data",
            "": _describe_stages(self.daemon),
            "loss": f"{curve}  {self.first_loss:.2f} at first, {self.last_loss:.2f} at last",
            "accuracy": f"{self.val_correct:,} of {self.val_images:,} held-out images correct "
            f"({self.accuracy:.0%}; by chance {1 / self.classes:.0%})",
            "in total": f"{self.total_s:.0f} s: drawing {self.draw_s:.0f}, packing "
            f"{self.pack_s:.0f}, starting {self.serve_start_s:.0f}, training {self.train_s:.0f}, "
            f"evaluating {self.eval_s:.0f}",
        }
        return "".join(f"  {name:<14}{text}\n" for name, text in rows.items() if text)


def draw_sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Return ``values``, averaged to at most 40 columns, as bars between the least and greatest."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    columns = min(_SPARKLINE_COLUMNS, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [statistics.fmean(values[start:stop]) for start, stop in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    steps = (high - low) or 1.0
    return "".join(blocks[round((mean - low) / steps * (len(blocks) - 1))] for mean in means)


def _describe_stages(daemon: Mapping[str, int | float | str]) -> str:
    """Return the workers' time in each stage of the sample path, in words; "" without any."""
    seconds = {
        name.removeprefix(_STAGE_PREFIX): float(value)
        for name, value in daemon.items()
        if name.startswith(_STAGE_PREFIX)
    }
    total_s, images = sum(seconds.values()), int(daemon.get("images", 0))
    if not total_s or not images:
        return ""
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {value / total_s:.0%}" for name, value in shares)
    return f"a worker's image takes {total_s / images * 1e6:,.0f} us: {text}"
