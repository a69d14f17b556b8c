"""The settings of a worker: read once, at the process' entry, from a mapping that is passed in."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bso.credentials import hide_passwords_of, setting
from bso.domain.errors import Misconfigured
from bso.domain.identifiers import login_problem
from bso.domain.quotas import EVERY_LOGIN, Quota
from bso.schema.wrong_values import explained
from bso_workers.errors import InvalidSettings

if TYPE_CHECKING:
    from bso.domain.decide import Rules

PREFIX = "BSO_"
_ALIKE = 0.86  # BSO_QUOTA is to BSO_QUOTAS, and BSO_GATEWAY_NAMES is not to BSO_GATEWAYS

Kind = TypeVar("Kind", bound=BaseModel)
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]
Seconds = Annotated[float, Field(gt=0, le=1e9)]


class LoginQuota(BaseModel):
    """The limits of one login, or of every login: those that are not set are as for every login. null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    jobs: Annotated[int, Field(ge=0)] | None = None
    batch_sizes: Annotated[int, Field(ge=1, le=1000)] | None = None
    open_recurrences: Annotated[int, Field(ge=1)] | None = None
    commands_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    bytes_per_s: Annotated[float, Field(gt=0, le=1e15)] | None = None


class WorkerSettings(BaseModel):
    """All settings of a worker. Each field is the variable BSO_<FIELD>, or a file that BSO_<FIELD>_FILE names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str = Field(
        repr=False, min_length=1, description="The database: mysql://user:password@host/bso, or postgresql://..."
    )
    amqp_url: str = Field(
        repr=False,
        min_length=1,
        description="The broker: amqp(s)://user:password@host:5672/virtual-host. Without it, BSO_URL.",
    )
    batch_limit: int = Field(
        default=64, ge=1, le=1000, description="How many commands one transaction decides at most."
    )
    prefetch: int = Field(
        default=128,
        ge=1,
        le=65535,
        description="How many messages the broker hands over ahead of their decision; one from a gateway has up to 32 "
        "commands.",
    )
    lease_s: Seconds = Field(default=600.0, description="How long a trial may stay silent before it is suspended.")
    resume_window_s: Seconds = Field(
        default=7 * 86400.0, description="How long a suspended trial may come back before it ends as interrupted."
    )
    max_batch_sizes: int = Field(
        default=64,
        ge=1,
        le=1000,
        description="The most batch sizes that a job may have: with more, choices take longer.",
    )
    operators: frozenset[str] = Field(
        default=frozenset(),
        description="Logins, separated by commas, that may do anything with any job, and former logins of workers.",
    )
    teams: frozenset[str] = Field(
        default=frozenset(),
        description=(
            "Teams, separated by commas: logins and jobs named after one (vision: vision, vision-...) belong together."
        ),
    )
    gateways: frozenset[str] = Field(
        default=frozenset(),
        description="Logins, separated by commas, of gateways (`bso serve`), which send commands for their own users.",
    )
    quotas: Mapping[str, LoginQuota] = Field(
        default={},
        description=(
            "How much each login may have, and how fast it may send, as JSON by login, `*` for every one: "
            '`{"*": {"commands_per_s": 50}, "vision-ci": {"jobs": 9}}`. Limits: docs/security.md.'
        ),
    )
    require_user_id: bool = Field(
        default=True,
        description="Refuse commands that do not name their login. Without it everybody may do everything.",
    )
    health_host: str = Field(
        default="127.0.0.1", min_length=1, description="Where /livez, /readyz and /metrics are served."
    )
    health_port: int = Field(default=8080, ge=0, le=65535, description="Their port; 0 takes a free one and logs it.")
    log_format: LogFormat = Field(
        default="auto", description="console for people, json for programs; auto: console on a terminal, else json."
    )
    log_level: LogLevel = Field(default="info", description="debug also logs every command.")
    relay_interval_s: Seconds = Field(default=5.0, description="How often to look for events that nobody published.")
    relay_age_s: Seconds = Field(default=10.0, description="How old an unpublished event is before it is relayed.")
    reaper_interval_s: Seconds = Field(default=15.0, description="How often to look for lapsed leases.")
    check_interval_s: Seconds = Field(default=5.0, description="How often to look whether the database is there.")
    savings_interval_s: float = Field(
        default=300.0, ge=0, le=1e9, description="How often to read what each job saved, for its metrics; 0: never."
    )
    database_timeout_s: Seconds = Field(
        default=20.0, description="How long one transaction may take before the database counts as away."
    )
    park_limit_s: Seconds = Field(
        default=7 * 86400.0,
        description="How long a command may wait for its job to get out of trouble before it becomes a dead letter.",
    )
    drain_timeout_s: Seconds = Field(
        default=25.0, description="How long to go on with commands already taken, after SIGTERM."
    )

    @field_validator("operators", "teams", "gateways", mode="before")
    @classmethod
    def _separate(cls, value: Any) -> Any:
        if isinstance(value, str):
            return frozenset(name for name in map(str.strip, value.split(",")) if name)
        return value

    @field_validator("quotas", mode="before")
    @classmethod
    def _read_quotas(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            read = json.loads(value, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{error}: expected JSON like {_QUOTAS_LIKE}") from error
        if not isinstance(read, dict) or not all(isinstance(quota, dict) for quota in read.values()):
            raise ValueError(f"expected limits by login, like {_QUOTAS_LIKE}, got {value[:60]}")
        if odd := next((login for login in read if login_problem(login) or login != login.strip()), None):
            raise ValueError(f"{odd!r} is no login")
        return read

    @field_validator("teams")
    @classmethod
    def _check_teams(cls, teams: frozenset[str]) -> frozenset[str]:
        for team in sorted(teams):
            if within := next((other for other in sorted(teams) if team.startswith(f"{other}-")), None):
                raise ValueError(f"{team} begins like team {within}, whose logins could read its events")
        return teams

    @model_validator(mode="after")
    def _check_prefetch(self) -> WorkerSettings:
        if self.prefetch < self.batch_limit:
            raise ValueError(f"prefetch ({self.prefetch}) must be at least batch_limit ({self.batch_limit})")
        return self

    @property
    def rules(self) -> Rules:
        """The settings of the optimizer itself."""
        from bso.domain.decide import Rules  # with numpy, which the help of `bso worker` can do without

        everybody = _set(self.quotas.get(EVERY_LOGIN, LoginQuota()))
        return Rules(
            max_batch_sizes=self.max_batch_sizes,
            lease_s=self.lease_s,
            resume_window_s=self.resume_window_s,
            operators=self.operators,
            teams=self.teams,
            quotas={login: Quota(**(everybody | _set(quota))) for login, quota in self.quotas.items()},
        )


_QUOTAS_LIKE = '{"*": {"jobs": 100}}'


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name stands there twice, among {', '.join(name for name, _ in pairs)}")
    return found


def _set(quota: LoginQuota) -> dict[str, Any]:
    return quota.model_dump(exclude_unset=True)


def read_settings(environ: Mapping[str, str], **options: Any) -> WorkerSettings:
    """Options that are not None, then the environment, then defaults. Raises InvalidSettings naming every fault."""
    texts = texts_of(WorkerSettings, environ, prefix=PREFIX)
    optimizer = _text(environ, "BSO_URL")
    if optimizer is not None and optimizer.startswith("amqp"):
        texts.setdefault("amqp_url", optimizer)
    return settings_of(WorkerSettings, texts, options, prefix=PREFIX)


def texts_of(kind: type[BaseModel], environ: Mapping[str, str], *, prefix: str) -> dict[str, str]:
    """What the environment says of settings of this kind, by field. Raises InvalidSettings."""
    found = {name: _text(environ, prefix + name.upper()) for name in kind.model_fields}
    return {name: text for name, text in found.items() if text is not None}


def misspelt(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Variables that look like one of these names, or its file's, and are none: what each was probably meant to be.

    Others say nothing wrong: Kubernetes gives every pod BSO_PORT where a service is called bso.
    """
    known = {*names, *(f"{name}_FILE" for name in names)}
    given = {name for name in environ if name.startswith(PREFIX)} - known
    found = {name: get_close_matches(name, sorted(known), n=1, cutoff=_ALIKE) for name in sorted(given)}
    return {name: meant[0] for name, meant in found.items() if meant}


def variables_of(kind: type[BaseModel], *, prefix: str) -> list[str]:
    """The variables of settings of this kind."""
    return [prefix + name.upper() for name in kind.model_fields]


def _text(environ: Mapping[str, str], variable: str) -> str | None:
    try:
        return setting(environ, variable)
    except Misconfigured as error:
        raise InvalidSettings(str(error)) from error


def settings_of(kind: type[Kind], texts: Mapping[str, str], options: Mapping[str, Any], *, prefix: str) -> Kind:
    """Options that are not None, then texts, then defaults. Raises InvalidSettings naming every fault."""
    values = {**texts, **{name: value for name, value in options.items() if value is not None}}
    hide_passwords_of(*(value for value in values.values() if isinstance(value, str)))
    try:
        return kind(**values)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, kind, prefix)) from None  # the cause would show passwords


def _explain(error: ValidationError, kind: type[BaseModel], prefix: str) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        name, *path = map(str, fault["loc"]) if fault["loc"] else ("",)
        is_shown = name not in kind.model_fields or kind.model_fields[name].repr  # others hold passwords
        words = explained({key: value for key, value in fault.items() if is_shown or key != "input"})
        if path:
            words = f"{'.'.join(path)}: {words}"
        if fault["type"] == "missing":
            words = f"not set. {kind.model_fields[name].description}"
        faults.append(f"{prefix}{name.upper()}: {words}" if name else words)
    return "; ".join(faults)
