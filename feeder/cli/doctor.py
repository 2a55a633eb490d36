"""``feeder doctor``: shows the machine as Feeder sees it, and what is wrong with it."""

import argparse
from pathlib import Path
from typing import Any

from feeder.cli.options import option
from feeder.errors import ConfigError

_FOUND = 1  # exit status


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="show the machine as Feeder sees it, and what is wrong with it",
        description="Show the machine as Feeder sees it: NUMA nodes, CPUs, devices, memory, limits "
        "and libraries. Then list what is wrong, the worst first, with the lines that mend it. The "
        "exit status is 0 if nothing is wrong (notes do not count), 1 if something is, and 2 for a "
        "wrong argument. It changes nothing and needs no daemon.",
    )
    option(
        parser,
        "--data DST",
        "folders of datasets, to see whether they are on a network",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
    )
    option(
        parser,
        "--pid N",
        "show the CPUs, cgroup and limits of process N, such as a running daemon, and find --data "
        "where it does (default: this command)",
        type=int,
    )
    root = "the folder that has /proc and /sys (default: /)"
    option(parser, "--root DIR", root, type=Path, default=Path("/"))
    option(parser, "--json", "print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; ConfigError if an argument names nothing."""
    import shutil

    from feeder.doctor.findings import find_all
    from feeder.doctor.kernel_files import KernelFiles
    from feeder.doctor.mounts import check_datasets
    from feeder.doctor.read_machine import read_machine
    from feeder.doctor.report import format_json, format_report

    process = "self" if arguments.pid is None else str(arguments.pid)
    _check_arguments(arguments.root, process)
    if arguments.root == Path("/"):  # another root is not where the paths are
        check_datasets(KernelFiles(arguments.root, process), arguments.data)
    machine = read_machine(arguments.root, arguments.data, process)
    findings = find_all(machine)
    if arguments.json:
        print(format_json(machine, findings))
    else:
        print(format_report(machine, findings, shutil.get_terminal_size().columns))
    return _FOUND if any(finding.severity != "note" for finding in findings) else 0


def _check_arguments(root: Path, process: str) -> None:
    if not (root / "proc").is_dir():
        raise ConfigError(
            f"--root {root} has no folder proc: name a folder that has /proc and /sys, such as /"
        )
    if process != "self" and not (process.isdigit() and (root / "proc" / process).is_dir()):
        raise ConfigError(
            f"--pid {process}: there is no such process; `pgrep -f feeder` lists some"
        )
