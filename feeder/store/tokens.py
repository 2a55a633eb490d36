"""Tokens of Google Cloud and Azure, where a service has to be asked for them again and again.

obstore asks the same services, but fails every request once a refresh fails, and does not expose
the expiry. Keys, SAS and service account files need no refresh and are left to it.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from feeder.errors import StoreError, StoreFault
from feeder.process.path_text import printable
from feeder.store.credentials import Found

_METADATA_TIMEOUT_S: Final = 2.0  # the service is on the host
_TOKEN_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 20

# A proxy that the environment names would be asked for the metadata of its own machine.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_google() -> Found:
    """Return a token of this machine's service account; StoreError."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    remedy = "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
    return _ask(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), remedy)


def find_azure() -> Found:
    """Return a token of an application or of this machine's managed identity; StoreError."""
    remedy = (
        "set AZURE_STORAGE_KEY or the like, or AZURE_SKIP_SIGNATURE=true for a public container"
    )
    client = os.environ.get("AZURE_CLIENT_ID", "")
    secret = os.environ.get("AZURE_CLIENT_SECRET")
    token_path = os.environ.get("AZURE_FEDERATED_TOKEN_FILE")
    if secret or token_path:
        form = {"grant_type": "client_credentials", "client_id": client}
        form["scope"] = "https://storage.azure.com/.default"
        if secret:
            form["client_secret"] = secret
        elif token_path:
            form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form["client_assertion"] = _read_token(token_path)
        host = os.environ.get("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com")
        url = f"{host.rstrip('/')}/{os.environ.get('AZURE_TENANT_ID', '')}/oauth2/v2.0/token"
        return _ask(urllib.request.Request(url, urlencode(form).encode()), remedy)
    query = {"api-version": "2019-08-01", "resource": "https://storage.azure.com/"}
    query |= {"client_id": client} if client else {}
    url = os.environ.get(
        "IDENTITY_ENDPOINT", "http://169.254.169.254/metadata/identity/oauth2/token"
    )
    headers = {"Metadata": "true", "X-IDENTITY-HEADER": os.environ.get("IDENTITY_HEADER", "")}
    return _ask(urllib.request.Request(f"{url}?{urlencode(query)}", headers=headers), remedy)


def _ask(request: urllib.request.Request, remedy: str) -> Found:
    where = printable(request.full_url.partition("?")[0])
    kind: StoreFault = "denied"
    try:
        if request.data is None:
            answer = _DIRECT.open(request, timeout=_METADATA_TIMEOUT_S)
        else:
            answer = urllib.request.urlopen(request, timeout=_TOKEN_TIMEOUT_S)
        with answer:
            return _read_answer(json.loads(answer.read(_ANSWER_BYTES_MAX)))
    except urllib.error.HTTPError as error:
        reason = f"status {error.code}"  # not its text, which may quote what was sent
        kind = "server" if error.code >= 500 else kind
    except OSError as error:
        reason = printable(str(getattr(error, "reason", error)))
        kind = kind if request.data is None else "unreachable"  # else this machine has no service
    except (ValueError, KeyError, TypeError):
        reason = "an answer without a token"
    raise StoreError(kind, f"{where} gives no credentials ({reason}): {remedy}")


def _read_answer(answer: Mapping[str, str]) -> Found:
    expires_s = answer.get("expires_on") or time.time() + float(answer["expires_in"])
    return Found({"token": answer["access_token"]}, float(expires_s))


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError("denied", f"AZURE_FEDERATED_TOKEN_FILE cannot be read: {error}") from None
