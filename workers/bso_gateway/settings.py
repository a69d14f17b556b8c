"""The settings of a gateway: read once, at the process' entry, from a mapping that is passed in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bso.credentials import without_passwords
from bso.domain.errors import Misconfigured
from bso.domain.policies import is_policy_name, policy_names
from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_client.settings import read_settings as read_client_settings
from bso_workers.errors import InvalidSettings
from bso_workers.settings import LogFormat, LogLevel, Seconds, settings_of, texts_of

PREFIX = "BSO_GATEWAY_"
ZEUS_POLICY = "pruning_thompson"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]+")


class GatewaySettings(BaseModel):
    """All settings of a gateway. Each field but the url is the variable BSO_GATEWAY_<FIELD>, or a file that
    BSO_GATEWAY_<FIELD>_FILE names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        repr=False,
        min_length=1,
        description="The optimizer: a SQLite file that this process decides over, or amqp(s)://user:password@host.",
    )
    operator_url: str | None = Field(
        default=None,
        repr=False,
        description="amqp(s)://operator:password@host: a login that the workers know as an operator, by which pages "
        "show queues and dead letters to operators where the gateway's own may not.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Where to listen: an address of this machine.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port; 0 takes a free one and logs it.")
    tokens: bool = Field(
        default=False,
        description="Ask each request for a token (`bso tokens create`). Without tokens everybody is authorized.",
    )
    names: frozenset[str] = Field(
        default=frozenset(),
        description="Names, separated by commas, by which clients reach it (the Host header), beside localhost.",
    )
    zeus_policy: str | None = Field(
        default=None, description="The policy of new jobs that Zeus' clients register. Without it, the default policy."
    )
    zeus_strict: bool = Field(
        default=False,
        description="Answer as Zeus does where bso would differ: a target reached above the bound is a failure.",
    )
    answer_timeout_s: Seconds = Field(
        default=4.0, description="How long a request waits for the optimizer before it is answered with 503."
    )
    body_timeout_s: Seconds = Field(default=10.0, description="How long the body of a request may take to arrive.")
    max_body_bytes: int = Field(
        default=1_048_576, ge=1024, le=MAX_MESSAGE_BYTES, description="The largest body of a request, in bytes."
    )
    head_timeout_s: Seconds = Field(
        default=10.0, description="How long the head of a request may take to arrive, from its connection on."
    )
    keep_alive_s: int = Field(
        default=75, ge=1, le=86400, description="How many seconds a connection is kept without a request."
    )
    max_connections: int = Field(
        default=1000, ge=1, description="How many connections are served at once; more are answered with 503."
    )
    tls_certificate: Path | None = Field(
        default=None, description="The file with the certificate (PEM) for HTTPS. Without it, plain HTTP."
    )
    tls_key: Path | None = Field(default=None, description="The file with the key of the certificate (PEM).")
    trusted_proxies: frozenset[str] = Field(
        default=frozenset(),
        description="Addresses or networks (10.0.0.0/8), separated by commas, of proxies whose X-Forwarded-For and "
        "-Proto headers are believed.",
    )
    access_log: bool = Field(default=True, description="Log a line for each request.")
    log_format: LogFormat = Field(
        default="auto", description="console for people, json for programs; auto: console on a terminal, else json."
    )
    log_level: LogLevel = Field(default="info", description="debug also logs the optimizer's connections.")
    drain_timeout_s: Seconds = Field(
        default=10.0, description="How long to go on with requests that have arrived, after SIGTERM."
    )

    @field_validator("names", "trusted_proxies", mode="before")
    @classmethod
    def _separate(cls, value: Any) -> Any:
        if isinstance(value, str):
            return frozenset(name for name in map(str.strip, value.lower().split(",")) if name)
        return value

    @field_validator("names")
    @classmethod
    def _check_names(cls, names: frozenset[str]) -> frozenset[str]:
        if odd := next((name for name in sorted(names) if not _NAME.fullmatch(name)), None):
            raise ValueError(f"{odd!r} is no name of a host: expected one without a port, such as bso.example")
        return names

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, proxies: frozenset[str]) -> frozenset[str]:
        for proxy in sorted(proxies):
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ValueError(
                    f"{proxy!r} is no address and no network, as 10.0.0.7 or 10.0.0.0/8: {error}"
                ) from None
        return proxies

    @field_validator("zeus_policy")
    @classmethod
    def _check_policy(cls, policy: str | None) -> str | None:
        if policy is not None and not is_policy_name(policy):
            raise ValueError(f"{policy!r} is no name of a policy; known are {', '.join(policy_names())}")
        return policy

    @model_validator(mode="after")
    def _check_together(self) -> GatewaySettings:
        if not self.tokens and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host}, and without tokens every client in that network is authorized to train and to "
                "delete every job: ask for tokens (--tokens, `bso tokens create`), or listen on 127.0.0.1"
            )
        if self.operator_url is not None and not self.url.startswith("amqp"):
            raise ValueError("operator_url is a login of a broker, and the optimizer's url names none: leave it out")
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: set both or none")
        if self.zeus_policy is not None and self.url.startswith("sqlite") and self.zeus_policy not in policy_names():
            known = ", ".join(policy_names())
            raise ValueError(f"zeus_policy {self.zeus_policy} is not installed here; known are {known}")
        if self.zeus_strict and self.zeus_policy not in (None, ZEUS_POLICY):
            raise ValueError(f"zeus_strict needs the policy {ZEUS_POLICY}, got {self.zeus_policy}")
        return self

    @property
    def policy_of_new_jobs(self) -> str | None:
        """The policy of jobs that Zeus' clients register; None: the default one."""
        return ZEUS_POLICY if self.zeus_strict else self.zeus_policy


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_settings(environ: Mapping[str, str], *, url: str | None = None, **options: Any) -> GatewaySettings:
    """Options that are not None, then the environment, then defaults. Raises InvalidSettings naming every fault."""
    texts = texts_of(GatewaySettings, environ, prefix=PREFIX)
    try:
        texts["url"] = read_client_settings(environ, url=url).resolved_url
    except Misconfigured as error:
        raise InvalidSettings(str(error)) from error
    return settings_of(GatewaySettings, texts, options, prefix=PREFIX)


def dashboard_settings(environ: Mapping[str, str], *, url: str | None, port: int) -> GatewaySettings:
    """The settings of pages for one user on this machine. Raises InvalidSettings."""
    try:
        resolved = read_client_settings(environ, url=url).resolved_url
    except Misconfigured as error:
        raise InvalidSettings(str(error)) from error
    if resolved.startswith("http"):
        words = (
            f"that gateway has the same pages itself: open {without_passwords(resolved).rstrip('/')}/ui in a browser"
        )
        raise InvalidSettings(words)
    options = {"port": port, "access_log": False, "log_level": "warning"}
    return settings_of(GatewaySettings, {"url": resolved}, options, prefix=PREFIX)
