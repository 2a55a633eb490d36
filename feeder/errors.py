"""Every error that Feeder raises on purpose.

    FeederError
    ├── ConfigError      the command line, the configuration or a recipe is invalid
    ├── DatasetError     a dataset, shard or source is missing, damaged or of another version
    │   ├── SampleError         one sample is damaged
    │   ├── SourceChangedError  a file of a source is not the one that was listed
    │   └── StoreError          an object store has not what was asked for, or does not answer
    ├── ResourceError    the machine lacks something: disk, memory, a port, a library
    │   ├── DisagreementError   processes of a daemon would make different batches
    │   └── OutputError         standard output cannot be written
    │       └── OutputClosedError   its reader closed it, as `| head` does: exits without a line
    ├── PeerError        the other side is absent, refuses, or is silent past the deadline
    └── ProtocolError    a message breaks the wire protocol

Each message is one line: what is wrong, where, and what to do about it. The command line prints it
as ``feeder: error: …`` and exits with the class's ``exit_status``:

    0 done    1 a fault, or a difference, was found    2 ConfigError    3 DatasetError
    4 ResourceError    5 PeerError, or a StoreError that may pass    6 ProtocolError
    130, 143 stopped by SIGINT, by SIGTERM (128 + its number)
    141 OutputClosedError (128 + SIGPIPE, as of a program that SIGPIPE ends)
"""

from collections.abc import Sequence
from typing import Final, Literal, get_args

_NAMED_MAX: Final = 3


class FeederError(Exception):
    """The root of all errors that Feeder raises on purpose."""

    exit_status: int = 1


class ConfigError(FeederError):
    """Raised when an argument, a configuration key or a recipe field has no valid meaning."""

    exit_status = 2


class DatasetError(FeederError):
    """Raised when data on disk is missing, damaged, incomplete or of another format version."""

    exit_status = 3


class SampleError(DatasetError):
    """Raised when a sample of a dataset is damaged or does not decode."""

    def __init__(self, message: str, sample_id: int | None = None) -> None:
        super().__init__(message)
        self.sample_id = sample_id


class SourceChangedError(DatasetError):
    """Raised for a file that is not the one that was listed: the whole packing ends.

    ``change`` is what happened, ``remedy`` what to do about it, which readers do not know.
    """

    def __init__(self, change: str, remedy: str = "") -> None:
        super().__init__(f"{change}: {remedy}" if remedy else change)
        self.change = change


PassingFault = Literal["unreachable", "timeout", "server", "throttled", "reset", "short"]
"""Why a store failed, if the same request may succeed later."""

StoreFault = Literal["gone", "denied", "expired", "changed", "unknown"] | PassingFault


class StoreError(DatasetError):
    """Raised when an object store lacks an object, refuses it, or fails for longer than allowed.

    gone: the bucket or the object; denied, expired: the credentials; changed: the object is another
    one; server: status 5xx; throttled: too many requests; reset: in mid-transfer; short: less came
    than was asked for.
    """

    def __init__(self, kind: StoreFault, message: str) -> None:
        super().__init__(message)
        self.kind: Final = kind
        if self.is_transient:  # so that systemd starts the daemon again
            self.exit_status = PeerError.exit_status

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in get_args(PassingFault)


class ResourceError(FeederError):
    """Raised when the machine lacks something: disk space, memory, a port, a library."""

    exit_status = 4


class DisagreementError(ResourceError):
    """Raised when a process's self-test differs from the first's: libraries were replaced."""


class OutputError(ResourceError):
    """Raised when standard output cannot be written, for example because its disk is full."""


class OutputClosedError(OutputError):
    """Raised when the process that read standard output through a pipe has closed it."""

    exit_status = 128 + 13  # SIGPIPE


class PeerError(FeederError):
    """Raised when the other side is absent, refuses, or stays silent past the deadline."""

    exit_status = 5


class ProtocolError(FeederError):
    """Raised when a message breaks the wire protocol or is of another protocol version."""

    exit_status = 6


def name_some(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first three names and the number of the others, for a message of one line."""
    shown = separator.join(names[:_NAMED_MAX])
    return shown + (f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else "")


def named_error(name: str, message: str) -> FeederError:
    """Return the error that another process sent by the name of its class."""
    kind: type[FeederError] = globals().get(name, FeederError)
    return kind(message)
