"""Why a connection failed, beneath the HTTP library's error."""

from __future__ import annotations

import ssl


def reason_of(error: BaseException) -> BaseException:
    """The operating system's error beneath the library's, if there is one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    timed_out = found is None and type(error).__name__.endswith("Timeout")
    return TimeoutError() if timed_out else found or error


def tls_fault(error: ssl.SSLError) -> str:
    """What is wrong with a TLS connection, and what to do about it."""
    if "CERTIFICATE" not in str(error):
        return "is it http:// rather than https://?"
    why = getattr(error, "verify_message", "")
    if "mismatch" in why or "expired" in why:
        return f"its certificate is not trusted ({why.rstrip('.')})."
    said = f" ({why})" if why else ""
    return f"its certificate is not trusted{said}; if it is your own, name its file: SSL_CERT_FILE=ca.pem augury ..."
