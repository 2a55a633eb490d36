"""Credentials of AWS, by its own chain: environment, web identity, profile, container, instance.

botocore has all of it, with single sign-on, roles and processes in profiles; obstore reads no
profile at all. Only the credentials are botocore's: it makes no request to a bucket. Where the
environment has keys and there is no profile it is not loaded, as that takes 0.15 s.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.errors import ConfigError, StoreError, StoreFault
from feeder.process.path_text import printable
from feeder.store.credentials import Found

if TYPE_CHECKING:
    from botocore.session import Session

_LIFE_MAX_S: Final = 1 << 18  # three days; AWS gives no more than 36 hours
_PROFILE_FILES: Final = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_KEYS: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
}
_EXPIRATION: Final = "AWS_CREDENTIAL_EXPIRATION"
_EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException")


def read_profile() -> Mapping[str, str]:
    """Return the settings of the profile that AWS_PROFILE names; ConfigError if there is none."""
    paths = [
        Path(os.environ.get(name) or default).expanduser()
        for name, default in _PROFILE_FILES.items()
    ]
    if "AWS_PROFILE" not in os.environ and not any(path.exists() for path in paths):
        return {}
    settings: Mapping[str, str] = _open_profile().get_scoped_config()
    return settings


def _open_profile() -> "Session":
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session()
    if region := os.environ.get("AWS_REGION"):  # botocore reads AWS_DEFAULT_REGION alone
        session.set_config_variable("region", region)
    try:
        session.get_scoped_config()
    except BotoCoreError as error:
        reason = printable(str(error))
        raise ConfigError(f"{reason}: check AWS_PROFILE, ~/.aws/config and credentials") from None
    return session


def find_aws() -> Found:
    """Return fresh credentials; StoreError, ConfigError."""
    keys = {ours: os.environ.get(name) or None for ours, name in _KEYS.items()}
    if keys["access_key_id"] and keys["secret_access_key"] and not os.environ.get(_EXPIRATION):
        return Found(keys)
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        credentials = _open_profile().get_credentials()  # a session would keep the old ones
        frozen = credentials.get_frozen_credentials() if credentials else None
    except (BotoCoreError, ClientError) as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code")
        kind: StoreFault = "expired" if code in _EXPIRED else "denied"
        raise StoreError(
            "unreachable" if isinstance(error, HTTPClientError) else kind,
            f"AWS gives no credentials ({printable(str(error))}): check the profile or the role",
        ) from None
    if frozen is None:
        raise StoreError(
            "denied",
            "there are no credentials of AWS in the environment or a profile, nor has this machine "
            "a role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
            "AWS_SKIP_SIGNATURE=true for a public bucket",
        )
    values = {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
    }
    return Found(values, _find_expiry_s(credentials))


def _find_expiry_s(credentials: Any) -> float | None:
    """Return when they expire: by bisection: botocore reports only whether within N s."""
    now_s = time.time()
    if not hasattr(credentials, "refresh_needed") or not credentials.refresh_needed(_LIFE_MAX_S):
        return None
    low_s, high_s = 0, _LIFE_MAX_S
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        low_s, high_s = (
            (low_s, middle_s) if credentials.refresh_needed(middle_s) else (middle_s, high_s)
        )
    return now_s + low_s
