"""Recipes as TOML files: those that Feeder ships, the user's own, and what is in effect.

Values come from three places, the later ones first: the command line, the recipe file, the
defaults. ``EffectiveRecipe`` keeps where each came from.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

from feeder.errors import ConfigError
from feeder.plan.recipe_checks import hint_at_nearest
from trainer_client.reference.recipes.recipe import (
    KEYS,
    TABLES,
    TrainingRecipe,
    about_key,
    check_keys,
)

_SUFFIX: Final = ".toml"


def shipped_recipes() -> list[str]:
    names = (each.name for each in files(__package__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRecipe:
    """A recipe, and where each of its values came from."""

    recipe: TrainingRecipe
    name: str  # the recipe's name or file; "defaults" without one
    origins: Mapping[str, str]
    """Of each key that is not a default, and of each field of a table as "data.NAME"."""

    @classmethod
    def make(cls, named: str | None, changes: Mapping[str, Any]) -> Self:
        """Take a recipe by name or file and change it, as the command line asks for.

        In ``changes``, ``data`` and ``val_data`` add to the recipe's fields. Raises ConfigError for
        an unknown recipe or key, and a value out of range.
        """
        name = named or "defaults"
        merged: dict[str, Any] = {table: {} for table in TABLES}
        origins: dict[str, str] = {}
        file = read_recipe(named) if named else {}
        for values, origin in ((file, name), (changes, "command line")):
            for key, value in values.items():
                if key in TABLES:
                    merged[key] = {**merged[key], **value}
                    origins |= {f"{key}.{field}": origin for field in value}
                else:
                    merged[key] = value
                    origins[key] = origin
        return cls(recipe=TrainingRecipe().changed(merged), name=name, origins=origins)

    def to_toml(self) -> str:
        """Return the recipe as a TOML file with every key, its explanation and its origin."""
        lines = [f"# Recipe {self.name}: every key that is in effect, and where it came from."]
        recipe, values = self.recipe, self.recipe.to_dict()
        tables = {table: values.pop(table) for table in TABLES}
        for key, value in values.items():
            line = f"{key} = {format_value(value)}"
            if key == "lr" and not recipe.lr and recipe.global_batch and recipe.base_batch:
                line += f"  # so {recipe.base_lr * recipe.global_batch / recipe.base_batch:g}"
            lines += ["", f"# {about_key(key)} ({self.origins.get(key, 'default')})", line]
        for table, fields in tables.items():
            assert isinstance(fields, Mapping)
            lines += ["", f"# {about_key(table)}", f"[{table}]"]
            for field, value in fields.items():
                origin = self.origins.get(f"{table}.{field}", "default")
                lines.append(f"{field} = {format_value(value)}  # {origin}")
        return "\n".join(lines) + "\n"


def read_recipe(named: str) -> dict[str, Any]:
    """Return the keys of a recipe: one that Feeder ships, or a TOML file.

    Raises ConfigError when there is none, when it is no TOML, and for an unknown key.
    """
    shipped = shipped_recipes()
    path = files(__package__).joinpath(named + _SUFFIX) if named in shipped else Path(named)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {named} is no TOML ({error}): mend the file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"there is no recipe {named!r} ({reason}): use one of {', '.join(shipped)}"
            f"{hint_at_nearest(named, shipped)}, or the name of a TOML file"
        ) from None
    check_keys(values, f"recipe {named}")
    for table in TABLES:
        if not isinstance(values.get(table, {}), dict):
            raise ConfigError(f"recipe {named}: {table} must be a table, as [{table}]")
    return values


def parse_value(key: str, text: str) -> object:
    """Return the value of a key from the command line: as in TOML, or plain text."""
    default = KEYS[key].default
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    value = _parse_toml(text)
    if isinstance(default, tuple) and not isinstance(value, list):
        return [_parse_toml(part.strip()) for part in text.split(",")]
    return value


def _parse_toml(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text


def format_value(value: object) -> str:
    """Return a value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False)  # equal for numbers, texts, lists and booleans
