"""Pieces of HTML. All text from outside goes through ``escape`` or ``escape_name``.

Invariant: what the functions here return is well-formed if the pieces that they are given are.
"""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Final

from feeder.process.path_text import printable

_NAME_CHARACTERS_MAX: Final = 120
_REASON_CHARACTERS_MAX: Final = 200


def escape(text: str) -> str:
    """``text`` for an element's content or a quoted attribute."""
    return html.escape(text, quote=True)


def escape_name(name: str) -> str:
    """A name from outside: printable, its middle left out where it is long, escaped."""
    return escape(_shorten(printable(name[: 1 << 16]), _NAME_CHARACTERS_MAX))


def escape_path(name: str) -> str:
    """``escape_name`` of a path, with places where a line may break."""
    return re.sub(r"([/_-]+)", r"\1<wbr>", escape_name(name))


def escape_reason(reason: str) -> str:
    """A reason from the quarantine list: printable, cut where it is long, escaped."""
    return escape(_shorten(printable(reason[: 1 << 16]), _REASON_CHARACTERS_MAX))


def _shorten(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - 1
    return text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]


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
    numeric = [head.endswith("#") for head in heads]
    top = "".join(
        f'<th scope="col"{_number_class(is_number)}>{escape(head.rstrip("#"))}</th>'
        for head, is_number in zip(heads, numeric, strict=True)
    )
    body = "\n".join(
        f'<tr><th scope="row"{_number_class(numeric[0])}>{row[0]}</th>'
        + "".join(
            f"<td{_number_class(is_number)}>{cell}</td>"
            for cell, is_number in zip(row[1:], numeric[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    style = f' class="{kind}"' if kind else ""
    return (
        f"<table{style}><caption>{escape(caption)}</caption>\n"
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )


def _number_class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def make_section(identity: str, title: str, *pieces: str) -> str:
    """A section with an anchor; empty pieces are left out."""
    return join_lines(
        (
            f'<section id="{identity}" aria-labelledby="{identity}-title">',
            f'<h2 id="{identity}-title">{escape(title)}</h2>',
            *pieces,
            "</section>",
        )
    )


def make_details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"
