"""Shared by all pictures of the bench: colours, line lengths, the type of a chart."""

import textwrap
from typing import Any, Final

BLUE: Final = "#3b6fb6"
ORANGE: Final = "#e08a2c"
GREEN: Final = "#4b9b6b"
GREY: Final = "#9aa3ad"
LIGHT_GREY: Final = "#d5dade"
RED: Final = "#c23b3b"
INK: Final = "#2b2f36"
FAINT_INK: Final = "#6b7680"
COLOURS: Final = (BLUE, ORANGE, GREEN, "#8a5fb0", RED, FAINT_INK)

_LINE_CHARACTERS: Final = 125  # of a subtitle, in a picture 800 px wide

Chart = Any
"""An altair chart; altair is optional, so its classes are not annotated."""


def wrap(sentence: str) -> list[str]:
    """Return the lines of a sentence in a subtitle."""
    return textwrap.wrap(sentence, _LINE_CHARACTERS, break_on_hyphens=False)
