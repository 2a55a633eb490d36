"""``feeder doctor``: shows the machine as Feeder sees it, and what is wrong with it."""

import argparse
import os
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
        "wrong argument. It changes nothing and needs no daemon. The disk of the disk cache is "
        "measured, for a second, with a file that has no name.",
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
        "--disk-path DIR",
        "look at this folder for the disk cache of datasets in object stores (default: as `feeder "
        "serve` finds it, if there is a cache or --config needs one)",
    )
    option(parser, "--config FILE", "the configuration of `feeder serve`", type=Path)
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
    disk_cache = _find_disk_cache(arguments)
    machine = read_machine(arguments.root, arguments.data, process, disk_cache=disk_cache)
    findings = find_all(machine)
    if arguments.json:
        print(format_json(machine, findings))
    else:
        print(format_report(machine, findings, shutil.get_terminal_size().columns))
    return _FOUND if any(finding.severity != "note" for finding in findings) else 0


def _find_disk_cache(arguments: argparse.Namespace) -> tuple[Path, int] | None:
    """The folder of the disk cache and its budget, 0 for "auto"; None if there is none to look at.

    Without the two options, nothing is imported that may be missing in this environment.
    """
    from feeder.cli.serve import find_cache_folder
    from feeder.doctor.disk_cache import PIECES

    if arguments.config is None and arguments.disk_path is None:
        folder = find_cache_folder("", os.environ)
        return (folder, 0) if folder is not None and (folder / PIECES).is_dir() else None
    from feeder.daemon.config import load_config
    from feeder.store.address import is_remote

    config = load_config(arguments.config, {"cache.disk_path": arguments.disk_path})
    cache = config.cache
    if not cache.disk_path and not any(map(is_remote, config.data.values())):
        return None
    folder = find_cache_folder(cache.disk_path or cache.dir, os.environ)
    budget = 0 if cache.disk_bytes == "auto" else cache.disk_bytes
    return None if folder is None else (folder, budget)


def _check_arguments(root: Path, process: str) -> None:
    if not (root / "proc").is_dir():
        raise ConfigError(
            f"--root {root} has no folder proc: name a folder that has /proc and /sys, such as /"
        )
    if process != "self" and not (process.isdigit() and (root / "proc" / process).is_dir()):
        raise ConfigError(
            f"--pid {process}: there is no such process; `pgrep -f feeder` lists some"
        )
