"""All targets.

A new target goes into the TARGETS of the module of its kind (NAME_targets.py); the TARGETS of a new
module are added here.
"""

from tests.fuzz import (
    config_targets,
    dataset_targets,
    key_targets,
    label_targets,
    native_targets,
    source_targets,
    tar_targets,
    tfrecord_targets,
    wire_targets,
)
from tests.fuzz.planted import PLANTED
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *wire_targets.TARGETS,
    *native_targets.TARGETS,
    *source_targets.TARGETS,
    *label_targets.TARGETS,
    *tar_targets.TARGETS,
    *tfrecord_targets.TARGETS,
    *dataset_targets.TARGETS,
    *config_targets.TARGETS,
    *key_targets.TARGETS,
)


def find_target(name: str) -> Target:
    """Return a target by its name, planted ones included; KeyError lists the known names."""
    known = {target.name: target for target in (*TARGETS, *PLANTED)}
    if name not in known:
        raise KeyError(f"no target {name!r}; known targets: {', '.join(known)}")
    return known[name]
