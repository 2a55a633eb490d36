"""Makes docs/status.svg and docs/top.svg: a real daemon with two clients, after a minute.

    python -m tests.ui.pictures [FOLDER]      # FOLDER: docs

One client takes batches as fast as they come, in place; the other trains over tcp, at its own pace.
"""

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from bench.daemon import free_port
from feeder.client.stats import request_report
from feeder.metrics.report import HostReport
from feeder.screens.sheet import BLOCKS, Sheet
from feeder.screens.status_screen import draw_status
from feeder.screens.top_screen import draw_top
from tests.support.daemon import Daemon
from tests.support.sources import REPOSITORY, pack

SAMPLE: Final = REPOSITORY.parent / "shared" / "data" / "imagenet-sample"
SECONDS: Final = 90
WIDTH, HEIGHT = 100, 26

CLIENT: Final = """
import sys, time
from trainer_client import FeederLoader
endpoint, pause_s = sys.argv[1], float(sys.argv[2])
with FeederLoader(endpoint, dataset="imagenet", batch_size=32) as loader:
    for epoch in range(1_000_000):
        for _ in loader:
            time.sleep(pause_s)
"""

THEME: Final = TerminalTheme(
    (30, 33, 39),
    (215, 218, 224),
    [
        *((63, 68, 81), (224, 85, 97), (140, 194, 101), (209, 143, 82)),
        *((74, 165, 240), (193, 98, 222), (66, 179, 194), (215, 218, 224)),
    ],
)


def main(folder: Path) -> None:
    report = watch()
    sys.stdout.write(f"{folder}: {report.verdict.text}\n")
    sheet = Sheet(WIDTH, BLOCKS)
    status = draw_status(report, sheet)
    note = Text("p pause  q quit", "dim")
    top, _ = draw_top(report, sheet, HEIGHT, 0, note)
    for name, title, lines in (
        ("status", "feeder status", status),
        ("top", "feeder top", top),
    ):
        write_svg(folder / f"{name}.svg", title, lines)


def watch() -> HostReport:
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        pack(SAMPLE, folder / "imagenet", shards=8)
        local, remote = f"ipc://{folder}/node", f"tcp://127.0.0.1:{free_port()}"
        arguments = ("--data", f"imagenet={folder}/imagenet", "--workers", "1")
        stack.enter_context(Daemon(*arguments, "--bind", local, "--bind", remote))
        stack.enter_context(client(local, 0.0))
        stack.enter_context(client(remote, 0.25))
        threading.Event().wait(SECONDS)
        return request_report(remote, 10.0)


@contextlib.contextmanager
def client(endpoint: str, pause_s: float) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, endpoint, str(pause_s)], cwd=REPOSITORY
    ) as process:
        try:
            yield
        finally:
            process.kill()


def write_svg(path: Path, title: str, lines: Sequence[Text]) -> None:
    with open("/dev/null", "w") as nowhere:
        console = Console(file=nowhere, record=True, width=WIDTH, force_terminal=True)
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
        # The identifier would otherwise be another in each run.
        path.write_text(console.export_svg(title=title, theme=THEME, unique_id=path.stem))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "docs"))
