"""Shared by all pictures of the bench: colours, and the type of a chart."""

from typing import Any, Final

BLUE: Final = "#3b6fb6"
ORANGE: Final = "#e08a2c"
GREY: Final = "#9aa3ad"
RED: Final = "#c23b3b"
INK: Final = "#2b2f36"
FAINT_INK: Final = "#6b7680"
COLOURS: Final = (BLUE, ORANGE, "#4b9b6b", "#8a5fb0", RED, FAINT_INK)

Chart = Any
"""An altair chart; altair is optional, so its classes are not annotated."""
