"""What went wrong at a store, as a StoreError: by obstore's exceptions, which carry text alone.

The text has the HTTP status, the body of the answer (S3 and GCS: XML with a code) and, after
"Debug source:", the kind of a failed connection. Nothing of it is quoted but the code and the
message of the store: the rest has URLs, whose queries may be signatures.
"""

import re
from typing import Final

from feeder.errors import StoreError, StoreFault
from feeder.process.path_text import printable

_STATUS: Final = re.compile(r"Server returned (?:non-2xx status code: |error response: )(\d{3})?")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_HTTP_KIND: Final = re.compile(r"HttpError \{\s*kind: (\w+)")

_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_BY_CODE: Final[dict[str, StoreFault]] = {
    **dict.fromkeys(_EXPIRED, "expired"),
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"), "denied"),
    **dict.fromkeys(
        ("InvalidToken", "AllAccessDisabled", "AuthorizationHeaderMalformed"), "denied"
    ),
    **dict.fromkeys(("NoSuchBucket", "NoSuchKey"), "gone"),
    **dict.fromkeys(("SlowDown", "Throttling", "TooManyRequests", "ServerBusy"), "throttled"),
    **dict.fromkeys(("InternalError", "ServiceUnavailable", "OperationTimedOut"), "server"),
    "RequestTimeout": "timeout",
}
_BY_STATUS: Final[dict[int, StoreFault]] = {
    401: "denied",
    403: "denied",
    404: "gone",
    408: "timeout",
    410: "gone",
    412: "changed",
    416: "changed",
    429: "throttled",
    503: "throttled",
}
_BY_HTTP_KIND: Final[dict[str, StoreFault]] = {
    "Connect": "unreachable",
    "Timeout": "timeout",
    "Interrupted": "reset",
    "Request": "reset",
    "Decode": "reset",
}


def explain(error: Exception, where: str) -> StoreError:
    """Return the error for what obstore raised at the URL ``where``."""
    text, _, debug = str(error).partition("\nDebug source:")
    if isinstance(error, TimeoutError):
        return store_error("timeout", where)
    if "non-partial response" in text or "Range request not supported" in text:
        return StoreError(
            "unknown",
            f"{where}: the server ignores byte ranges and sends the whole object, which Feeder "
            "cannot use: serve it from a server that answers a range with status 206",
        )
    if "UnexpectedRange" in debug:
        return store_error("short", where, "another range than the requested one")
    code, message = _CODE.search(text), _MESSAGE.search(text)
    status = _STATUS.search(text)
    detail = " ".join(printable(part[1]) for part in (code, message) if part is not None) or (
        f"status {status[1]}" if status and status[1] else ""
    )
    if code is not None and code[1] in _BY_CODE:
        return store_error(_BY_CODE[code[1]], where, detail)
    if status is not None and status[1]:
        number = int(status[1])
        kind = _BY_STATUS.get(number, "server" if number >= 500 else "unknown")
        return store_error(kind, where, detail)
    if "redirect without LOCATION" in text:
        return StoreError(
            "unknown",
            f"{where}: the bucket is in another region: set AWS_REGION to the bucket's region",
        )
    http_kind = _HTTP_KIND.search(debug)
    if http_kind is not None and http_kind[1] in _BY_HTTP_KIND:
        return store_error(_BY_HTTP_KIND[http_kind[1]], where)
    return store_error("unknown", where, printable(text.partition("\n")[0].partition("?")[0][:200]))


_SENTENCES: Final[dict[StoreFault, tuple[str, str]]] = {
    "gone": ("there is no such object or bucket", "check the address and the bucket's content"),
    "denied": ("access denied", "give these credentials the right to read it, or use others"),
    "expired": ("the credentials have expired", "renew them"),
    "changed": ("the object has changed", "publish a changed dataset at a new address"),
    "unreachable": ("the store cannot be reached", "check the network, the endpoint and DNS"),
    "timeout": ("the store does not answer in time", "check the network and the store's load"),
    "server": ("the store reports an error of its own", "try again later"),
    "throttled": (
        "the store limits the rate of requests",
        "fetch less at a time, or try again later",
    ),
    "reset": ("the connection was closed in mid-transfer", "check the network and proxies"),
    "short": ("the store sent less than was requested", "check proxies and the object itself"),
    "unknown": ("the store refused the request", "check the store's log"),
}


def store_error(kind: StoreFault, where: str, detail: str = "") -> StoreError:
    what, remedy = _SENTENCES[kind]
    return StoreError(kind, f"{where}: {what}{f' ({detail})' if detail else ''}: {remedy}")
