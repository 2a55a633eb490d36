"""All targets: those in the TARGETS of each module NAME_targets.py."""

import importlib
from pathlib import Path

from tests.fuzz.planted import PLANTED
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = tuple(
    target
    for path in sorted(Path(__file__).parent.glob("*_targets.py"))
    for target in importlib.import_module(f"tests.fuzz.{path.stem}").TARGETS
)


_BY_NAME = {target.name: target for target in (*TARGETS, *PLANTED)}
assert len(_BY_NAME) == len(TARGETS) + len(PLANTED), "two targets have one name"


def find_target(name: str) -> Target:
    """Return a target by its name, planted ones included; KeyError lists the known names."""
    if name not in _BY_NAME:
        raise KeyError(f"no target {name!r}; known targets: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
