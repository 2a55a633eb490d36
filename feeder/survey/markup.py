"""Pieces of HTML. Text from outside goes through ``html.escape``, ``escape_name`` or its kin.

Invariant: what the functions here return is well-formed if the pieces that they are given are.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from feeder.process.path_text import printable

_NAME_CHARACTERS_MAX: Final = 120
_REASON_CHARACTERS_MAX: Final = 200


def escape_name(name: str, characters_max: int = _NAME_CHARACTERS_MAX) -> str:
    """A name from outside: printable, its middle left out where it is long, escaped."""
    text = printable(name[: 1 << 16])
    if len(text) > characters_max:
        half = characters_max // 2
        text = f"{text[:half]}…{text[len(text) - half + 1 :]}"
    return escape(text)


def escape_path(name: str) -> str:
    """``escape_name`` of a path, with places where a line may break."""
    return re.sub(r"([/_-]+)", r"\1<wbr>", escape_name(name))


def escape_reason(reason: str) -> str:
    """A reason from the quarantine list."""
    return escape_name(reason, _REASON_CHARACTERS_MAX)


def join_lines(pieces: Iterable[str]) -> str:
    """The pieces that are not empty, a line each."""
    return "\n".join(piece for piece in pieces if piece)


def make_table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = ""
) -> str:
    """A table of cells that are HTML already; a head that ends in "#" is of numbers.

    The first cell of a row is its head. ``caption`` is text; it is for screen readers only where
    ``kind`` contains "plain".
    """
    styles = [' class="n"' if head.endswith("#") else "" for head in heads]
    top = "".join(
        f'<th scope="col"{style}>{escape(head.rstrip("#"))}</th>'
        for head, style in zip(heads, styles, strict=True)
    )
    lines = []
    for first, *others in rows:
        cells = "".join(
            f"<td{style}>{cell}</td>" for style, cell in zip(styles[1:], others, strict=True)
        )
        lines.append(f'<tr><th scope="row"{styles[0]}>{first}</th>{cells}</tr>')
    return f"""\
<table class="{kind}"><caption>{escape(caption)}</caption>
<thead><tr>{top}</tr></thead>
<tbody>
{join_lines(lines)}
</tbody></table>"""


def make_section(identity: str, title: str, *pieces: str) -> str:
    """A section with an anchor; empty pieces are left out."""
    return f"""\
<section id="{identity}" aria-labelledby="{identity}-title">
<h2 id="{identity}-title">{escape(title)}</h2>
{join_lines(pieces)}
</section>"""
