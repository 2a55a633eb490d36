"""What a process prints, in locales that have not every character."""

import io
import sys


def escape_unencodable() -> None:
    """Have stdout and stderr write what the locale cannot encode as escapes, instead of failing.

    Names of files hold any character, and bytes that are none.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test may have put something else there
            stream.reconfigure(errors="backslashreplace")
