"""The ``feeder`` commands of the demo, none of which outlives it, not even after SIGKILL."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from feeder.errors import ResourceError
from feeder.process.child import child_environment

from ..daemon import DaemonProcess, feeder_command
from ..line_process import start_process, stop_process


def run_feeder(*arguments: str) -> None:
    """Run a ``feeder`` command to its end; ResourceError when it fails (it logs why to stderr)."""
    process = start_process(feeder_command(*arguments), env=child_environment())
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
    arguments = [text for name, path in datasets.items() for text in ("--data", f"{name}={path}")]
    daemon = DaemonProcess(feeder_command("serve", *arguments, "--bind", endpoint))
    try:
        yield daemon.await_ready().removeprefix("feeder: ")
        daemon.terminate()
        if daemon.process.returncode != 0:
            raise ResourceError(
                f"`feeder serve` ended with status {daemon.process.returncode}; "
                f"its last log line: {daemon.last_log_line()}"
            )
    finally:
        daemon.terminate()
