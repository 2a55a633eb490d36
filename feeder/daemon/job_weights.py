"""The tables [weights.CLIENT] of the configuration: JOB = the job's weight, 1 if it is not listed.

CLIENT is what limits apply to: the name of a key, over ipc "user 1000", over plain tcp
"address 10.1.2.3". JOB is the name that a job gives, "" for the sessions that give none.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from feeder.daemon.config_keys import Number
from feeder.errors import ConfigError
from feeder.wire.messages import JobName, Name

TABLE: Final = "weights"
_SHOWN_CHARS: Final = 80
_WEIGHT: Final = Number(0.01, 100)


def parse_weights(client: str, value: object) -> Mapping[str, float]:
    """Return the weights of a client's jobs; ConfigError, without the file's name, if invalid."""
    if not _is_name(client, Name):
        raise ConfigError(
            f"{client[:_SHOWN_CHARS]!r} in [{TABLE}] is not a client: write a key's name, "
            '"user NUMBER" or "address ADDRESS"'
        )
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'{TABLE}.{client} must be a table of its jobs: [{TABLE}."{client}"] with JOB = 3'
        )
    weights: dict[str, float] = {}
    for job, weight in value.items():
        if not _is_name(job, JobName):
            raise ConfigError(
                f"{job[:_SHOWN_CHARS]!r} in [{TABLE}.{client}] is not a job's name: use 128 "
                "characters at most, no control characters"
            )
        try:
            parsed = _WEIGHT.parse(weight)
        except ValueError:
            raise ConfigError(
                f"the weight of job {job!r} in [{TABLE}.{client}] is not {_WEIGHT.allowed}"
            ) from None
        assert isinstance(parsed, float)
        weights[job] = parsed
    return weights


def _is_name(text: str, kind: object) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True
