"""The command line of ``python -m trainer_client.train``, and the process that it runs in.

Every key of the recipe is an option: ``weight_decay`` is ``--weight-decay``.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

from feeder.errors import ConfigError
from feeder.plan.recipe import parse_field
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.output_file import explain_write_errors, write_output
from feeder.process.program import run_guarded
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.recipes.recipe import KEYS, KINDS, about_key
from trainer_client.reference.recipes.recipe_file import (
    EffectiveRecipe,
    format_value,
    parse_value,
    shipped_recipes,
)
from trainer_client.reference.tracking.live_line import LiveLine
from trainer_client.reference.train import train

_TABLES: Final = ("data", "val_data")


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line."""

    values: dict[str, Any]
    recipe: EffectiveRecipe
    json_path: Path | None
    is_show: bool

    def options(self) -> TrainingOptions:
        """Return the job's options; ConfigError when they do not fit together."""
        return TrainingOptions(
            recipe=self.recipe.recipe,
            recipe_name=self.recipe.name,
            recipe_origins=self.recipe.origins,
            **self.values,
        )


def parse(arguments: Sequence[str] | None) -> Command:
    """Parse a command line; ConfigError for a recipe or a value that is wrong."""
    values = parse_arguments(_make_parser(), arguments)
    changes: dict[str, object] = {}
    for key in KEYS:
        if key in _TABLES:
            fields = [parse_field(text) for text in values.pop(f"{key}_recipe")]
            if fields:
                changes[key] = dict(fields)
        elif (text := values.pop(key)) is not None:
            changes[key] = parse_value(key, text)
    if values["endpoint"] is None and "://" in (values["resume"] or ""):
        values["endpoint"], values["resume"] = values["resume"], "auto"  # train --resume tcp://…
    recipe = EffectiveRecipe.make(values.pop("recipe"), changes)
    json_path, is_show = values.pop("json"), values.pop("show")
    return Command(values, recipe, json_path, is_show)


class JobParser(argparse.ArgumentParser):
    """A parser that reports what is wrong in one line: with so many options, usage fills a page."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(f"{message} (--help lists the options)")


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> dict[str, Any]:
    """Return the values of the options; ConfigError names one that resembles an unknown one."""
    values, unknown = parser.parse_known_args(arguments)
    for text in unknown:
        option = text.partition("=")[0]
        if option.startswith("-"):
            known, help_ = parser._option_string_actions, " (--help lists the options)"
            hint = hint_at_nearest(option, known, help_, show=str)
            raise ConfigError(f"there is no option {option}{hint}")
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is one argument too many (--help lists the options)")
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
    command = parse(arguments)
    if command.is_show:
        sys.stdout.write(command.recipe.to_toml())
        return 0
    options = command.options()
    live_line = LiveLine(sys.stdout)
    try:
        result = train(options, report=live_line.print_line, trackers=[live_line])
    finally:
        live_line.close()
    if command.json_path is not None and result.rank == 0:
        write_json(asdict(result), command.json_path)
    return 0


def write_json(value: object, path: Path) -> None:
    """Write a result; ResourceError when that fails."""
    text = json.dumps(value, indent=2, default=dict) + "\n"
    with explain_write_errors(f"the result to {path}", "name another --json file"):
        write_output(path, text.encode())


def add_feeder_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that asks a feeder."""
    parser.add_argument(
        "--batch-size",
        type=int,
        default=0,
        help="images of a rank that go through the model at once; default: from the recipe, or 256",
    )
    parser.add_argument(
        "--window", type=int, default=4, help="batches to request ahead; default: %(default)s"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=60.0,
        help="of each wait for a feeder; default: %(default)s",
    )
    parser.add_argument("--device", help="default: cuda if available, else cpu")
    parser.add_argument("--server-key", metavar="KEY", help="the feeder's public key, or its file")
    parser.add_argument("--client-key", metavar="FILE", help="this job's secret key")
    parser.add_argument(
        "--job",
        default="",
        metavar="NAME",
        help="this job's name: feeders share their workers evenly between jobs, or by weight",
    )


def _make_parser() -> JobParser:
    parser = JobParser(
        prog="python -m trainer_client.train",
        usage="python -m trainer_client.train [ENDPOINT] [options]",
        description="Train an image model on batches from a feeder.",
        epilog="A smoke test without data or a feeder: --recipe smoke --output DIR",
        allow_abbrev=False,
    )
    parser.add_argument(
        "endpoint",
        nargs="?",
        help="tcp://HOST:PORT, ipc:///PATH, dns://NAME:PORT or file:///PATH",
    )
    parser.add_argument("--dataset", default="", metavar="NAME", help="the training set's name")
    parser.add_argument("--val-dataset", metavar="NAME", help="the validation set's name")
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        help=f"{', '.join(shipped_recipes())}, or a TOML file; default: the defaults below",
    )
    parser.add_argument("--show", action="store_true", help="print the recipe in effect, and end")
    add_feeder_options(parser)
    kept = parser.add_argument_group("what is kept")
    kept.add_argument("--output", metavar="DIR", help="folder of the run, with all that it leaves")
    kept.add_argument("--keep", type=int, default=3, help="checkpoints; default: %(default)s")
    kept.add_argument(
        "--checkpoint", metavar="FILE", help="without --output: save the job there and on SIGTERM"
    )
    kept.add_argument(
        "--checkpoint-steps",
        type=int,
        default=1000,
        help="steps between checkpoints, beside one after each epoch; default: %(default)s",
    )
    kept.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="auto|FILE",
        help="from the latest checkpoint if there is one (auto, also without a value), or FILE",
    )
    kept.add_argument("--init", metavar="FILE", help="weights to begin with: a state dict")
    kept.add_argument("--tensorboard", action="store_true", help="in DIR/tensorboard")
    kept.add_argument("--wandb", metavar="PROJECT", help="Weights & Biases")
    kept.add_argument("--mllog", action="store_true", help="MLPerf's log, in DIR/mllog.txt")
    kept.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    keys = parser.add_argument_group("keys of the recipe, with their defaults")
    for key, described in KEYS.items():
        if key not in _TABLES:
            default = format_value(described.default).replace("%", "%%")
            choices = get_args(KINDS[key])
            is_choice = bool(choices) and isinstance(choices[0], str)
            keys.add_argument(
                f"--{key.replace('_', '-')}",
                metavar="|".join(choices) if is_choice else "VALUE",
                help=f"{about_key(key).replace('%', '%%')}; {default}",
            )
    for table, option, use in (
        ("data", "--data-recipe", "training"),
        ("val_data", "--val-data-recipe", "evaluation"),
    ):
        keys.add_argument(
            option,
            dest=f"{table}_recipe",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"a field of the data's recipe for {use}; may be repeated",
        )
    return parser
