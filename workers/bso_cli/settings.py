"""Where a command finds the optimizer and its database: options first, then the environment, then a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bso.credentials import setting
from bso.domain.errors import WrongSetting


class NoDatabase(WrongSetting):
    """This command reads the database itself, and only a broker is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """``url`` is what trainings talk to (BSO_URL), ``database_url`` where jobs are stored (BSO_DATABASE_URL)."""

    url: str | None = field(repr=False)  # this and the next may hold passwords
    database_url: str | None = field(repr=False)
    state_dir: Path
    default_url: str

    @property
    def optimizer_url(self) -> str:
        """What a training started here talks to: BSO_URL, else the SQLite file in the state directory."""
        return self.url or self.default_url

    @property
    def is_embedded(self) -> bool:
        """Whether trainings decide for themselves, in a SQLite file."""
        return self.optimizer_url.startswith("sqlite")

    @property
    def has_database(self) -> bool:
        """Whether jobs can be read here; not so where only a broker is known."""
        return self.database_url is not None or self.is_embedded

    def database(self, command: str) -> str:
        """The address of the database for a command that cannot do without. Raises NoDatabase."""
        if self.database_url is not None:
            return self.database_url
        if self.is_embedded:
            return self.optimizer_url
        known = "gateway" if self.optimizer_url.startswith("http") else "broker"
        raise NoDatabase(
            f"`{command}` reads the database, and BSO_URL names only a {known}: set BSO_DATABASE_URL, or give "
            "--database-url, as the workers have it (mysql://user:password@host/bso)"
        )


def places(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    database_url: str | None = None,
    state_dir: Path | None = None,
) -> Places:
    """Read options and environment once. Raises Misconfigured where an address cannot be one."""
    from bso_client.settings import read_settings

    settings = read_settings(environ, url=url, state_dir=state_dir)
    return Places(
        url=settings.url,
        database_url=database_url or setting(environ, "BSO_DATABASE_URL"),
        state_dir=settings.resolved_state_dir,
        default_url=read_settings({}, state_dir=settings.resolved_state_dir).resolved_url,
    )
