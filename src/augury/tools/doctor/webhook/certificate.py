"""The server's certificate, which is reloaded when it is renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

from augury.config.errors import ConfigError


class Certificate:
    """A certificate and its key in files, as cert-manager or a Secret provides them."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load both; a ConfigError if they cannot be used."""
        self.certificate, self.key = certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.stamp = self._stamp()
        self._load(self.context)

    def renew(self) -> bool:
        """Reload both files if they changed and return whether they did; open connections keep the old certificate."""
        try:
            stamp = self._stamp()
            if stamp == self.stamp:
                return False
            # Both are tried in a separate context first: half of a renewed pair must not replace a whole one.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except ConfigError:
            return False
        self.stamp = stamp
        return True

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [path.stat() for path in (self.certificate, self.key)]
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}.") from None
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # an encrypted key must not prompt
        except (OSError, ssl.SSLError) as error:
            said = getattr(error, "reason", None) or error.strerror
            raise ConfigError(
                f"--tls-cert {self.certificate}, --tls-key {self.key}: {said}; give a PEM pair."
            ) from None
