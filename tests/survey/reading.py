"""Reads a survey as a browser does: a well-formed tree, its text, what it refers to."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "img", "wbr", "br", "link", "input", "hr"}
_REFERENCES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
_ENDS_ITSELF = {"line", "rect"}  # elements of SVG that are written <line/>


@dataclass
class ReadPage:
    """What a parser found on a page."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Of each element without child elements, and between elements."""
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    """The cells of each table's rows, by caption."""
    problems: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def references(self) -> list[str]:
        """Return all that the page refers to."""
        return [
            value or ""
            for _, attributes in self.elements
            for name, value in attributes.items()
            if name in _REFERENCES
        ]

    def identities(self) -> list[str]:
        """Return the id of each element that has one."""
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = ReadPage()
        self._open: list[str] = []
        self._caption = ""
        self._continues = False  # after a place where a line may break

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append((tag, dict(attrs)))
        if len({name for name, _ in attrs}) < len(attrs):
            self.page.problems.append(f"<{tag}> has an attribute twice")
        if tag == "tr":
            self.page.tables.setdefault(self._caption, []).append([])
        elif tag in ("td", "th"):
            self.page.tables[self._caption][-1].append("")
        elif tag == "caption":
            self._caption = ""
        if tag == "wbr":
            self._continues = True
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append((tag, dict(attrs)))
        if tag not in _ENDS_ITSELF:
            self.page.problems.append(f"<{tag}/> is not closed")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.page.problems.append(f"</{tag}> closes another element")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            before = self.page.texts.pop() if self._continues else ""
            self.page.texts.append(before + data)
            self._continues = False
        if self._open and self._open[-1] == "caption":
            self._caption += data
        elif {"td", "th"} & {*self._open}:
            self.page.tables[self._caption][-1][-1] += data

    def finish(self) -> ReadPage:
        self.close()
        self.page.problems += [f"<{tag}> is not closed" for tag in self._open]
        return self.page


def read_page(html: str) -> ReadPage:
    """Return what is on the page."""
    reader = _Reader()
    reader.feed(html)
    return reader.finish()
