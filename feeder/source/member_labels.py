"""Labels in members of a WebDataset: .cls, .txt and .json files.

--label        the member                       its label
(none)         .cls, else .txt, else .json      as below; of JSON, the first of JSON_KEYS
cls, txt       .cls, .txt                       its text without white space around it
json.a.b       .json                            the value of the key "a.b", or of "b" in "a"
"""

import json
from typing import Final, cast

from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.source.item_bytes import SourceError
from feeder.source.raw_labels import RawLabel
from feeder.source.source import SourceSpec

_LABEL_EXTENSIONS: Final = ("cls", "txt", "json")
"""Where a label is looked for, in this order, unless --label names its member."""
JSON_KEYS: Final = ("label", "cls", "class", "class_id", "labels")
"""Where a label is looked for in a JSON member, in this order, unless --label names its key."""
LABEL_BYTES_MAX: Final = 1 << 20

_SHOWN_CHARACTERS: Final = 80


class LabelField:
    """Where a sample's label is."""

    def __init__(self, spec: SourceSpec) -> None:
        """Raise ConfigError for a --label without meaning."""
        self.extensions: tuple[str, ...] = _LABEL_EXTENSIONS
        """Of the members that may hold it; the first that a sample has does."""
        self._json_path = ""
        if not spec.label:
            return
        before, is_json, path = f".{spec.label.lstrip('.')}".partition(".json")
        if is_json and (not path or path.startswith(".")):
            extension, self._json_path = f"{before}.json", path[1:]
        else:
            extension = spec.label
        self.extensions = (extension.lstrip(".").lower(),)
        if not self.extensions[0] or "/" in self.extensions[0]:
            raise ConfigError(
                f"--label {printable(spec.label)} names no member: give cls, txt or json.KEY"
            )

    def parse(self, extension: str, data: bytes, size_bytes: int) -> RawLabel:
        """Return the RawLabel in a member's data; SourceError (bad-label, no-label)."""
        if size_bytes > LABEL_BYTES_MAX:
            raise SourceError("bad-label", f"its {show_text(extension)} has {size_bytes} bytes")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise SourceError("bad-label", f"its {show_text(extension)} is not UTF-8") from None
        form = extension.rpartition(".")[2]
        label = self._find_value(_parse_json(extension, text)) if form == "json" else text
        if isinstance(label, dict):
            raise SourceError("bad-label", "its label is a JSON object")
        return cast(RawLabel, label)  # what it is, the listing checks

    def _find_value(self, content: object) -> object:
        path = self._json_path
        if not path:
            if not isinstance(content, dict):
                return content
            path = next((key for key in JSON_KEYS if key in content), "")
            if not path:
                wanted = ", ".join(JSON_KEYS)
                raise SourceError(
                    "no-label", f"its JSON has none of the keys {wanted}: see --label"
                )
        value = content
        is_key = isinstance(content, dict) and path in content  # a key may have a dot
        for step in (path,) if is_key else path.split("."):
            if not isinstance(value, dict) or step not in value:
                raise SourceError("no-label", f"its JSON has no {show_text(path)}")
            value = value[step]
        if value is None:
            raise SourceError("no-label", f"its JSON has null as {show_text(path)}")
        return value


def show_text(text: str) -> str:
    """Return a short text of the source's for a reason."""
    return printable(text)[:_SHOWN_CHARACTERS] or "''"


def _parse_json(extension: str, text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise SourceError("bad-label", f"its {show_text(extension)} is nested too deeply") from None
    except ValueError as error:
        raise SourceError("bad-label", f"its {show_text(extension)} is no JSON ({error})") from None
