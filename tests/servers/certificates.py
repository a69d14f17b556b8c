"""Certificates for tests: an authority of one's own, and what it issues, as PEM files."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files of a certificate (with those between it and its authority) and of its private key."""

    cert: Path
    key: Path


class Authority:
    """An authority that only those know who name its file, ``ca``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        self.renew()

    def renew(self) -> None:
        """Become another authority: what was issued before is good no more where ``ca`` is read again."""
        self._issuer = trustme.CA()
        self._issuer.cert_pem.write_to_path(str(self.ca))

    def issue(
        self, name: str, *hosts: str, common_name: str | None = None, expired: timedelta | None = None
    ) -> Certificate:
        """Write NAME.pem and NAME.key: a certificate for hosts, or of the login ``common_name``.

        ``expired``: so long ago.
        """
        until = None if expired is None else datetime.now(UTC) - expired
        since = None if until is None else until - timedelta(days=1)
        issued = self._issuer.issue_cert(*hosts, common_name=common_name, not_before=since, not_after=until)
        made = Certificate(cert=self.folder / f"{name}.pem", key=self.folder / f"{name}.key")
        made.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(made.key))
        return made
