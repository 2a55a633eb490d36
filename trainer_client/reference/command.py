"""The command line of ``python -m trainer_client.train``, and the process that it runs in.

Every key of the recipe is an option: ``weight_decay`` is ``--weight-decay``.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn, get_args

from feeder.errors import ConfigError
from feeder.plan.recipe import parse_field
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.program import run_guarded
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.recipes.recipe import (
    KEYS,
    KINDS,
    TABLES,
    compose_recipe,
    format_value,
    parse_value,
    shipped_recipes,
    show_recipe,
)
from trainer_client.reference.tracking.files import to_json
from trainer_client.reference.tracking.live_line import LiveLine
from trainer_client.reference.train import train


class JobParser(argparse.ArgumentParser):
    """A parser that reports what is wrong in one line: with so many options, usage fills a page."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help lists the options)")

    def parse(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """Return the options' values; ConfigError names one that resembles an unknown one."""
        values, unknown = self.parse_known_args(arguments)
        for text in unknown:
            option = text.partition("=")[0]
            if option.startswith("-"):
                known, help_ = self._option_string_actions, " (--help lists the options)"
                hint = hint_at_nearest(option, known, help_, show=str)
                raise ConfigError(f"there is no option {option}{hint}")
        if unknown:
            self.error(f"{unknown[0]!r} is one argument too many")
        return vars(values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job from the command line and return its exit status."""
    return run_guarded("train", lambda: _run(arguments))


def run_process() -> int:
    """Run the job as a process that ``feeder.process.program`` has started."""
    handle_signals()
    return _run(None)


def handle_signals() -> None:
    """Have Ctrl-C raise KeyboardInterrupt, so that sessions are closed, and SIGTERM end at once."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _run(arguments: Sequence[str] | None) -> int:
    values = _make_parser().parse(arguments)
    changes: dict[str, object] = {}
    for key in KEYS:
        if key in TABLES:
            changes[key] = dict(map(parse_field, values.pop(f"{key}_recipe")))
        elif (text := values.pop(key)) is not None:
            changes[key] = parse_value(key, text)
    if values["endpoint"] is None and "://" in (values["resume"] or ""):
        values["endpoint"], values["resume"] = values["resume"], "auto"  # train --resume tcp://…
    named, json_path = values.pop("recipe"), values.pop("json")
    recipe, origins = compose_recipe(named, changes)
    name = named or "defaults"
    if values.pop("show"):
        sys.stdout.write(show_recipe(recipe, name, origins))
        return 0
    options = TrainingOptions(recipe=recipe, recipe_name=name, recipe_origins=origins, **values)
    live_line = LiveLine(sys.stdout)
    try:
        result = train(options, report=live_line.print_line, trackers=[live_line])
    finally:
        live_line.close()
    if json_path is not None and result.rank == 0:
        write_json(asdict(result), json_path)
    return 0


def write_json(value: object, path: Path) -> None:
    """Write a result; ResourceError when that fails."""
    with explain_write_errors(f"the result to {path}", "name another --json file"):
        write_output(path, to_json(value))


def add_options(parser: argparse._ActionsContainer, group: str) -> None:
    for option in fields(TrainingOptions):
        if option.metadata.get("group") == group:
            parser.add_argument(f"--{option.name.replace('_', '-')}", **option.metadata["argument"])


def _make_parser() -> JobParser:
    parser = JobParser(
        prog="python -m trainer_client.train",
        usage="python -m trainer_client.train [ENDPOINT] [options]",
        description="Train an image model on batches from a feeder.",
        epilog="A smoke test without data or a feeder: --recipe smoke --output DIR",
        allow_abbrev=False,
    )
    forms = "tcp://HOST:PORT, ipc:///PATH, dns://NAME:PORT or file:///PATH"
    parser.add_argument("endpoint", nargs="?", help=forms)
    add_options(parser, "data")
    named = f"{', '.join(shipped_recipes())}, or a TOML file; default: the defaults below"
    parser.add_argument("--recipe", metavar="NAME|FILE", help=named)
    parser.add_argument("--show", action="store_true", help="print the recipe in effect, and end")
    add_options(parser, "feeder")
    kept = parser.add_argument_group("what is kept")
    add_options(kept, "kept")
    kept.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    add = parser.add_argument_group("keys of the recipe, with their defaults").add_argument
    for key, described in KEYS.items():
        if key in TABLES:
            continue
        choices = get_args(KINDS[key])
        is_choice = bool(choices) and isinstance(choices[0], str)
        add(
            f"--{key.replace('_', '-')}",
            metavar="|".join(choices) if is_choice else "VALUE",
            help=f"{described.metadata['about']}; {format_value(described.default)}".replace(
                "%", "%%"
            ),
        )
    for key, use in zip(TABLES, ("training", "evaluation"), strict=True):
        option = f"--{key.replace('_', '-')}-recipe"
        about = f"a field of the data's recipe for {use}; may be repeated"
        add(option, action="append", default=[], metavar="NAME=VALUE", help=about)
    return parser
