"""All targets. A new one goes into a module of its own kind, and that module's list in here."""

from tests.fuzz import (
    config_targets,
    dataset_targets,
    native_targets,
    source_targets,
    wire_targets,
)
from tests.fuzz.planted import PLANTED
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *wire_targets.TARGETS,
    *native_targets.TARGETS,
    *source_targets.TARGETS,
    *dataset_targets.TARGETS,
    *config_targets.TARGETS,
)


def find_target(name: str) -> Target:
    """Return the target of a name, a planted one too; KeyError names those that there are."""
    known = {target.name: target for target in (*TARGETS, *PLANTED)}
    if name not in known:
        raise KeyError(f"no target {name!r}: there are {', '.join(known)}")
    return known[name]
