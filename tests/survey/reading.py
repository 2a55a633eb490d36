"""Reads a survey as a browser does: a well-formed tree, its text, what it refers to."""

import re
from xml.etree import ElementTree

_REFERENCES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}


class ReadPage:
    """What a parser finds on a page, which ParseError refuses unless it is well-formed."""

    def __init__(self, html: str) -> None:
        # As XML, elements without an end end themselves; words go on after a <wbr>.
        xml = re.sub(r"(<(?:meta|img)[^>]*)>", r"\1/>", html.replace("<wbr>", ""))
        root = ElementTree.fromstring(xml.removeprefix("<!DOCTYPE html>"))
        self.elements = list(root.iter())
        style = root.find("head/style")
        assert style is not None
        self.style, style.text = style.text, ""
        self.texts = list(root.itertext())
        """Of each element without child elements, and between elements."""
        self.text = " ".join(" ".join(self.texts).split())
        """All text, with single spaces."""
        self.tables = {
            table.findtext("caption", ""): [
                ["".join(cell.itertext()) for cell in row] for row in table.iter("tr")
            ]
            for table in root.iter("table")
        }
        """The cells of each table's rows, by caption."""
        self.references = [
            value
            for element in self.elements
            for name, value in element.attrib.items()
            if name in _REFERENCES
        ]
        self.identities = [each.attrib["id"] for each in self.elements if "id" in each.attrib]
