"""What went wrong at a store, as a StoreError: by obstore's exceptions, which carry text alone.

The text has the HTTP status, the body of the answer (S3 and GCS: XML with a code) and, after
"Debug source:", the kind of a failed connection. Only the store's code and message and the
system's reason are quoted: URLs have queries, which may be signatures.
"""

import re
from typing import Final

from feeder.errors import StoreError, StoreFault
from feeder.process.path_text import printable

_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<\n]{1,300})")
_CONNECTION: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_REASON: Final = re.compile(r"(?:message|error): \"([^\"]{1,200})\"")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_EXPIRED: Final = re.compile(
    r"<Code>(?:ExpiredToken|RequestExpired|TokenRefreshRequired)"
    r"|Signature not valid in the specified time frame|Lifetime validation failed"  # of Azure
)

_BY_CODE: Final[dict[str, StoreFault]] = {
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"), "denied"),
    **dict.fromkeys(("InvalidToken", "AuthorizationHeaderMalformed"), "denied"),  # status 400
    "RequestTimeout": "timeout",  # status 400
    **dict.fromkeys(("SlowDown", "ServerBusy"), "throttled"),
}
_BY_STATUS: Final[dict[int, StoreFault]] = {
    **dict.fromkeys((401, 403), "denied"),
    **dict.fromkeys((404, 410), "gone"),
    408: "timeout",
    **dict.fromkeys((412, 416), "changed"),
    **dict.fromkeys((429, 503), "throttled"),
}
_BY_CONNECTION: Final[dict[str, StoreFault]] = {
    "Connect": "unreachable",
    "Timeout": "timeout",
    **dict.fromkeys(("Interrupted", "Request", "Decode"), "reset"),
}
_SENTENCES: Final[dict[StoreFault, tuple[str, str]]] = {
    "gone": ("there is no such object or bucket", "check the address"),
    "denied": ("access denied", "give these credentials the right to read it, or use others"),
    "expired": ("the credentials have expired", "renew them"),
    "changed": ("the object has changed", "publish changed data at another address"),
    "unreachable": ("the store cannot be reached", "check the endpoint and the network"),
    "timeout": ("the store does not answer in time", "check the network and the store's load"),
    "server": ("the store reports an error of its own", "try again later"),
    "throttled": ("the store limits the rate of requests", "raise its limit, or try again later"),
    "reset": ("the connection was closed in mid-transfer", "check the network and proxies"),
    "short": ("the store sent less than was requested", "check proxies and the store"),
    "unknown": ("the store refused the request", "check the store's log"),
}


def store_error(kind: StoreFault, where: str, detail: str = "") -> StoreError:
    what, remedy = _SENTENCES[kind]
    return StoreError(kind, f"{where}: {what}{detail and f' ({detail})'}: {remedy}")


def explain(error: Exception, where: str) -> StoreError:
    """Return the error for what obstore raised at the URL ``where``."""
    text, _, debug = str(error).partition("\nDebug source:")
    if "non-partial response" in text or "Range request not supported" in text:
        return StoreError(
            "unknown",
            f"{where}: the server ignores byte ranges and sends the whole object: serve it from "
            "one that answers a range with status 206",
        )
    if "redirect without LOCATION" in text:
        line = f"{where}: the bucket is in another region: set AWS_REGION to the bucket's"
        return StoreError("unknown", line)
    if "UnexpectedRange" in debug:
        return store_error("short", where)
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
    detail = " ".join(printable(part[1]) for part in (code, message) if part)
    if status:
        number = int(status[1])
        kind = _BY_STATUS.get(number, "server" if number >= 500 else "unknown")
        kind = _BY_CODE.get(code[1], kind) if code else kind
        kind = "expired" if _EXPIRED.search(text) else kind
        return store_error(kind, where, detail or f"status {number}")
    if certificate := _CERTIFICATE.search(debug):
        return StoreError(
            "unknown",
            f"{where}: the store's TLS certificate is not valid ({certificate[1]}): if its "
            "authority is your own, name the file in SSL_CERT_FILE",
        )
    connection, reason = _CONNECTION.search(debug), _REASON.search(debug)
    if connection and connection[1] in _BY_CONNECTION:
        detail = printable(reason[1]) if reason else ""
        return store_error(_BY_CONNECTION[connection[1]], where, detail)
    return store_error("unknown", where, printable(text.partition("\n")[0].partition("?")[0][:200]))
