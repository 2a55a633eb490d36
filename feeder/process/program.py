"""Runs a program of ours, so that from its first line on it ends with one line and a status.

    signals   SIGINT and SIGTERM end it at once, until its own code handles them
    streams   closed descriptors are opened, broken ones handled (standard_streams.py)
    main()    imported and run; every error becomes one line on standard error
    the end   what was printed is written out while an error can still be reported

The program's first module imports this one and nothing else, so that a Ctrl-C during the imports,
which take most of a short command's time, leaves no traceback. So at the top here is only what
Python itself has loaded at its start: ``_signal``, because ``signal`` builds its enumerations.
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
_before_leaving: "list[Callable[[], None]]" = []


def run_program(name: str, main: "Callable[[], int]") -> int:
    """Run ``main`` as a whole process; return its exit status. ``name`` begins each error line."""
    leave = leave_on_signals(name)
    try:
        from feeder.process.standard_streams import guard_streams, open_missing_descriptors

        open_missing_descriptors()
        guard_streams()
        return run_guarded(name, main)
    finally:
        for number in _STOP_SIGNALS:
            # While Python shuts down there is little left that a handler could use.
            if _signal.getsignal(number) is leave:
                _signal.signal(number, _signal.SIG_DFL)


def run_guarded(name: str, main: "Callable[[], int]") -> int:
    """Run ``main`` and write out what it printed; return its status, or the error's after a line.

    Raises SystemExit as argparse does, and whatever is a fault of ours.
    """
    from feeder.errors import FeederError, OutputClosedError
    from feeder.process.shortage import (  # now: later there is no memory
        explain_os_error,
        explain_shortage,
    )

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


def leave_on_signals(name: str) -> "Callable[[int, FrameType | None], None]":
    """Have SIGINT and SIGTERM end this process at once, with a line and status 128 + number.

    For the time of imports: nothing has been begun that would have to be undone. A signal that is
    ignored, as in a shell's background jobs, stays ignored. Returns the handler.
    """
    line = f"{name}: interrupted\n".encode()
    write, end = os.write, os._exit

    def leave(number: int, frame: "FrameType | None") -> None:
        try:
            write(2, line)
            for call in _before_leaving:
                call()
        finally:  # also where standard error cannot be written
            end(128 + number)

    for number in _STOP_SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, leave)
    return leave


def call_before_leaving(call: "Callable[[], None]") -> None:
    """Have ``leave_on_signals`` run ``call`` after writing its line, for example to flush it."""
    _before_leaving.append(call)
