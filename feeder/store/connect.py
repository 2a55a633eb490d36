"""An obstore object for an address: its limits, endpoint and credentials, from the environment.

obstore reads AWS_…, GOOGLE_… and AZURE_… itself. Added are AWS's profiles, the names that Azure's
tools use, Google's emulator, credentials that are refreshed, and that plain HTTP needs permission.

obstore runs threads of its own: a process that has imported it must not fork (Feeder only spawns).
"""

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from feeder.errors import ConfigError
from feeder.installation import install_command
from feeder.process.path_text import printable
from feeder.store.address import WEB, StoreAddress, is_loopback
from feeder.store.aws import find_aws, read_profile
from feeder.store.credentials import Credentials, Found

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0  # without a byte: a stalled transfer is given up and made again
TRANSFER_TIMEOUT_S: Final = 120.0  # of a whole request: a piece of 16 MiB at 1 Mbit/s
CONNECTIONS_MAX: Final = 64  # kept open when idle: as many as there are requests at a time

_CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_PREFIXES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_KEYS: Final = {
    "s3": r"AWS_SKIP_SIGNATURE",
    "gs": r"GOOGLE_(SKIP_SIGNATURE|APPLICATION_CREDENTIALS|SERVICE_ACCOUNT\w*|BEARER_TOKEN)",
    "az": r"AZURE_(SKIP_SIGNATURE|USE_AZURE_CLI|STORAGE_(USE_EMULATOR|(\w+_)?(KEY|TOKEN)))",
}
"""The variables with which obstore needs no credentials, or has some that need no refresh."""
_GOOGLE_LOGIN: Final = ".config/gcloud/application_default_credentials.json"
_AZURE_NAMES: Final = {
    "AZURE_STORAGE_ACCOUNT": "account_name",
    "AZURE_STORAGE_KEY": "access_key",
    "AccountName": "account_name",  # these are of AZURE_STORAGE_CONNECTION_STRING
    "AccountKey": "access_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


def connect(
    address: StoreAddress, on_refresh_failure: Callable[[], None]
) -> tuple[Callable[[], Any], Credentials | None]:
    """Return what makes the obstore object, and the credentials that it takes, None for its own.

    ConfigError if the extra is not installed or the environment has a mistake.
    """
    try:
        import obstore.store

        config = _read_config(address.scheme)
    except ImportError as error:
        raise ConfigError(
            f"{address} needs the package {error.name}, which is not installed: "
            f"`{install_command('stores')}` (the extra stores)"
        ) from None
    find = None if _has_keys(address.scheme, config) else _find_chain(address.scheme)
    credentials = Credentials(find, on_refresh_failure) if find else None
    settings: dict[str, Any] = {
        "client_options": _client_options(address, config),
        "retry_config": {"max_retries": 0},
    }
    if address.scheme not in WEB:
        settings |= {"config": config, "prefix": address.path or None}
    if credentials is not None:
        settings["credential_provider"] = credentials
    where = address.url if address.scheme in WEB else address.bucket

    def make() -> Any:
        try:
            return getattr(obstore.store, _CLASSES.get(address.scheme, "HTTPStore"))(
                where, **settings
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            reason = printable(str(error).partition("\n")[0][:200])
            raise ConfigError(
                f"{address} cannot be opened: {reason}: check the environment"
            ) from None

    return make, credentials


def _find_chain(scheme: str) -> Callable[[], Found] | None:
    """Return what gets the credentials of a cloud; imported only where they are needed."""
    if scheme == "s3":
        return find_aws
    if scheme in WEB:
        return None
    from feeder.store.tokens import find_azure, find_google

    return find_google if scheme == "gs" else find_azure


def _read_config(scheme: str) -> dict[str, str]:
    """Return what obstore does not read itself, in its names."""
    config = {}
    if scheme == "s3":
        profile = read_profile()
        if not {"AWS_REGION", "AWS_DEFAULT_REGION"} & {*os.environ} and "region" in profile:
            config["region"] = profile["region"]
        if "endpoint_url" in profile and not _find_endpoint(scheme):
            config["endpoint"] = profile["endpoint_url"]
    elif scheme == "gs" and (host := os.environ.get("STORAGE_EMULATOR_HOST")):
        config["base_url"] = host if "://" in host else f"http://{host}"
        config["skip_signature"] = "true"
    elif scheme == "az":
        parts = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        values = {name: value for name, _, value in (part.partition("=") for part in parts)}
        values |= os.environ
        config = {ours: values[name] for name, ours in _AZURE_NAMES.items() if values.get(name)}
    return config


def _has_keys(scheme: str, config: Mapping[str, str]) -> bool:
    pattern = re.compile(_KEYS.get(scheme, "-"))
    given = {name for name, value in os.environ.items() if value and pattern.fullmatch(name)}
    given -= {name for name in given if os.environ[name].lower() in ("false", "0", "off", "no")}
    given |= {"access_key", "sas_key", "skip_signature"} & {*config}
    return bool(given) or (
        scheme == "gs" and Path(os.environ.get("HOME", "/"), _GOOGLE_LOGIN).exists()
    )


def _client_options(address: StoreAddress, config: Mapping[str, str]) -> dict[str, Any]:
    endpoint, allow = address.url, ""
    if address.scheme not in WEB:
        endpoint = config.get("endpoint") or config.get("base_url", "")
        endpoint = endpoint or _find_endpoint(address.scheme)
        allow = f"{_PREFIXES[address.scheme]}_ALLOW_HTTP"
    is_plain = endpoint.startswith("http://")
    is_allowed = os.environ.get(allow, "").lower() in ("true", "1", "on", "yes")
    if is_plain and not is_allowed and not is_loopback(urlsplit(endpoint).hostname):
        raise ConfigError(
            f"{address} would be read over plain http from {printable(endpoint)}: use https"
            f"{allow and f', or set {allow}=true'}"
        )
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "timeout": timedelta(seconds=TRANSFER_TIMEOUT_S),
        "pool_max_idle_per_host": str(CONNECTIONS_MAX),
        "allow_http": is_plain,
    }
    if path := os.environ.get("AWS_CA_BUNDLE"):  # obstore reads SSL_CERT_FILE itself
        try:
            options["root_certificate"] = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"AWS_CA_BUNDLE {printable(path)}: {error.strerror}") from None
    return options


def _find_endpoint(scheme: str) -> str:
    return next(filter(None, map(os.environ.get, _ENDPOINTS[scheme])), "")
