"""Runs a Feeder program, so that any failure ends it with one line and an exit status.

    signals   SIGINT and SIGTERM end it at once, until its own code handles them
    streams   closed descriptors are opened, broken ones handled (standard_streams.py)
    main()    imported and run; every error becomes one line on standard error
    exit      output is flushed while an error can still be reported

The program's first module imports this one only, so that a Ctrl-C during the imports, which take
most of a short command's time, leaves no traceback. So this module imports at its top only what
Python has loaded at its start: ``_signal``, because ``signal`` builds its enumerations.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own would take an import of typing
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal

_STOP_SIGNALS = (_signal.SIGINT, _signal.SIGTERM)
_before_exit: "list[Callable[[], None]]" = []


def run_program(name: str, main: "Callable[[], int]") -> int:
    """Run ``main`` as a process; return its exit status. ``name`` is the prefix of error lines."""
    handler = exit_on_signals(name)
    try:
        from feeder.process.standard_streams import guard_streams, open_missing_descriptors

        open_missing_descriptors()
        guard_streams()
        return run_guarded(name, main)
    finally:
        for number in _STOP_SIGNALS:
            # A handler could not rely on much while Python shuts down.
            if _signal.getsignal(number) is handler:
                _signal.signal(number, _signal.SIG_DFL)


def run_guarded(name: str, main: "Callable[[], int]") -> int:
    """Run ``main`` and flush its output; return its exit status, after a line if it failed.

    Lets SystemExit (argparse's) and bugs of Feeder through.
    """
    from feeder.errors import FeederError, OutputClosedError

    # Imported before memory can run out.
    from feeder.process.shortage import explain_os_error, explain_shortage

    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OutputClosedError as error:
        return error.exit_status
    except FeederError as error:
        explained = error
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        return 128 + _signal.SIGINT
    except Exception as error:
        shortage = explain_shortage(error)
        if shortage is None and isinstance(error, OSError):
            shortage = explain_os_error(error)
        if shortage is None:
            raise
        explained = shortage
    sys.stderr.write(f"{name}: error: {explained}\n")
    return explained.exit_status


def exit_on_signals(name: str) -> "Callable[[int, FrameType | None], None]":
    """Have SIGINT and SIGTERM end this process at once, with a line and status 128 + number.

    Meant for the imports, when there is nothing to clean up. A signal that is ignored, as in a
    shell's background jobs, stays ignored. Returns the handler.
    """
    line = f"{name}: interrupted\n".encode()
    write, end = os.write, os._exit

    def exit_at_once(number: int, frame: "FrameType | None") -> None:
        try:
            write(2, line)
            for call in _before_exit:
                call()
        finally:  # even if standard error cannot be written
            end(128 + number)

    for number in _STOP_SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, exit_at_once)
    return exit_at_once


def call_before_exit(call: "Callable[[], None]") -> None:
    """Have the handler of ``exit_on_signals`` run ``call`` after its line, e.g. to flush it."""
    _before_exit.append(call)
