"""All targets.

A new one goes into the module of its kind (NAME_targets.py, with a list TARGETS at its end); a new
module is imported here and its list added to ours: nothing else needs to know.
"""

from tests.fuzz import (
    config_targets,
    dataset_targets,
    key_targets,
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
    *key_targets.TARGETS,
)


def find_target(name: str) -> Target:
    """Return the target of a name, a planted one too; KeyError names those that there are."""
    known = {target.name: target for target in (*TARGETS, *PLANTED)}
    if name not in known:
        raise KeyError(f"no target {name!r}: there are {', '.join(known)}")
    return known[name]
