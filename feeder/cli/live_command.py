"""A live screen as a command: q and Ctrl-C end it with success, other signals with their status."""

import signal
import time
from typing import TYPE_CHECKING

from feeder.cli.report_source import LinkSource
from feeder.process.stop_signals import SignalWakeup, StopSignals

if TYPE_CHECKING:
    from feeder.metrics.report import HostReport
    from feeder.screens.console import Console
    from feeder.screens.live import Draw


def show_live(
    source: LinkSource, first: "HostReport", draw: "Draw", interval_s: float, console: "Console"
) -> "HostReport":
    """Show a live screen until the user ends it; return the last report.

    Raises SystemExit after SIGTERM, SIGHUP (a closed terminal) and SIGQUIT (Ctrl-\\). The terminal
    is as it was before in every case.
    """
    from feeder.screens.live import LiveState, run_live

    state = LiveState(first, source.endpoint, interval_s, time.monotonic())
    stop = StopSignals(signal.SIGHUP, signal.SIGQUIT)
    wakeup = SignalWakeup((signal.SIGWINCH, signal.SIGTSTP))
    try:
        with stop:
            run_live(source, state, draw, console, wakeup.fileno())
    except KeyboardInterrupt:
        if stop.received != signal.SIGINT:
            raise SystemExit(stop.exit_status) from None
    return state.report
