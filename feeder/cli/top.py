"""``feeder top``: ``feeder status`` live and in full screen, with curves and all workers."""

import argparse
from typing import Any, Final

from feeder.cli.report_options import add_interval_option, add_source_options, choose_interval

_INTERVAL_S: Final = 1.0


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "top",
        help="show live what a running daemon and its workers do",
        description="Show live what the daemon at ENDPOINT does on its whole host. Keys: arrows "
        "and PgUp/PgDn scroll lists that are too long, p pauses, q quits.",
    )
    add_source_options(parser)
    add_interval_option(parser, _INTERVAL_S)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the screen; PeerError when the first report does not come in time."""
    from feeder.cli.report_source import open_source
    from feeder.screens.console import check_live, open_console

    interval_s = choose_interval(arguments, _INTERVAL_S)
    with open_source(arguments.endpoint, arguments) as source:
        console = open_console()
        check_live(console, "feeder top")
        first = source.fetch()

        from feeder.cli.live_command import show_live
        from feeder.screens.top_screen import draw_top

        show_live(source, first, draw_top, interval_s, console)
    return 0
