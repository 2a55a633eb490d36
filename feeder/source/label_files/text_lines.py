"""Streams the lines of a UTF-8 text file that Feeder did not write; faults come with their line."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular_file, read_regular

LINE_BYTES_MAX: Final = 16 << 20
_NO_TEXT: Final = {
    b"\x1f\x8b": "is compressed: decompress it with `gunzip`",
    b"\x28\xb5\x2f\xfd": "is compressed: decompress it with `unzstd`",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV, or unzip it",
    b"PAR1": "is a Parquet file: write it as CSV or JSONL",
    codecs.BOM_UTF16_LE: "is UTF-16: convert it with `iconv -f utf-16 -t utf-8`",
    codecs.BOM_UTF16_BE: "is UTF-16: convert it with `iconv -f utf-16 -t utf-8`",
}


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file with their ends; a byte order mark is left out.

    Raises DatasetError for a file that cannot be read or is no UTF-8 text, with line and byte.
    """
    for number, line in enumerate(read_byte_lines(path), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"line {number} of {printable(path_to_text(path))} is not UTF-8 (byte "
                f"{line[error.start]:#04x} at {error.start + 1}): convert the file, for example "
                "with `iconv -f latin1 -t utf-8`"
            ) from None


def read_byte_lines(path: Path) -> Iterator[bytes]:
    """Yield the same as bytes, for names, which need not be UTF-8; see ``read_lines``."""
    shown = printable(path_to_text(path))
    try:
        with open_regular_file(path) as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if number == 1:
                    _check_is_text(line, shown)
                    line = line.removeprefix(codecs.BOM_UTF8)
                if len(line) > LINE_BYTES_MAX:
                    raise DatasetError(
                        f"line {number} of {shown} is longer than {LINE_BYTES_MAX >> 20} MiB: is "
                        "it a text file of a line for each image?"
                    )
                yield line
    except OSError as error:
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None


def read_text(path: Path, bytes_max: int) -> str | None:
    """Return the text of a file without its byte order mark, None if it has over ``bytes_max``.

    Raises as ``read_lines`` does.
    """
    shown = printable(path_to_text(path))
    try:
        data = read_regular(path, bytes_max + 1)
    except OSError as error:
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        return None
    _check_is_text(data, shown)
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        for _ in read_lines(path):  # raises with the number of the line
            pass
        raise


def _check_is_text(start: bytes, shown: str) -> None:
    for magic, problem in _NO_TEXT.items():
        if start.startswith(magic):
            raise DatasetError(f"{shown} {problem}")
