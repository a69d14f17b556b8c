"""What the environment says, read once when an optimizer is made. An argument beats the environment."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from bso.credentials import hide_passwords_of, problem_of, setting, shown_address
from bso.domain.foreign_text import shown
from bso.domain.identifiers import MAX_LENGTH, identifier_problem
from bso_client.errors import InvalidSetting, InvalidUrl
from bso_client.once import said

logger = logging.getLogger("bso")

SCHEMES = ("sqlite", "amqp", "amqps", "http", "https")
VARIABLES = (
    "BSO_URL",
    "BSO_STATE_DIR",
    "BSO_JOB_ID",
    "BSO_RECURRENCE_ID",
    "BSO_RECURRENCE_DIR",
    "BSO_TOKEN",
    "BSO_ENERGY",
    "BSO_POWERCAP_DIR",
    "BSO_PROBING",
    "BSO_TRIAL_LOG",
)
"""What a training reads from its environment, or gets there from ``bso recur``; addresses also in BSO_..._FILE."""
_NO_NAME = "token"  # in front of a token where the address has no name: the token itself says whose it is
_DATABASES = ("mysql", "mariadb", "postgresql", "postgres")
EXPECTED = (
    "expected sqlite:////path/to/file.db, amqp(s)://user:password@host:5672/virtual-host, or https://user:TOKEN@host"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the optimizer is, which job and recurrence this process works for, and its place among its ranks.

    ``trial_log`` is the file in which ``bso recur`` follows this process. ``probes``: epoch costs may be probed.
    """

    url: str | None = field(repr=False)  # may hold a password
    state_dir: Path | None
    job_id: str | None
    recurrence_id: str | None
    world_size: int
    rank: int | None
    local_rank: int | None = None
    trial_log: Path | None = None
    probes: bool = True

    @property
    def resolved_state_dir(self) -> Path:
        """The state directory: as given, else the user's own, by the conventions of the platform."""
        if self.state_dir is not None:
            return self.state_dir
        import platformdirs

        return Path(platformdirs.user_state_dir("bso", appauthor=False))

    def announce_place(self) -> None:
        """Say where things are kept, once in a process."""
        words = self.announced_place
        if words is None or words in said:
            return
        said.add(words)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", words, extra={"action": "place_announced"})
        else:
            print(shown(words), file=sys.stderr)  # noqa: T201  # a user without logging has to know where files appear

    @property
    def announced_place(self) -> str | None:
        """A notice of where things are kept; None where the address says it already."""
        if self.url is None:
            own = self.resolved_url.removeprefix("sqlite:///")
            return f"bso keeps what it learns in {own} (BSO_URL or BSO_STATE_DIR change it)"
        path = Path(self.url.removeprefix("sqlite:///")).expanduser()
        if not self.url.startswith("sqlite:///") or path.is_absolute():
            return None
        return (
            f"bso keeps what it learns in {path.absolute()}: BSO_URL is relative to the current directory "
            "(sqlite:////path/to/file.db, with four slashes, is not)"
        )

    @property
    def resolved_url(self) -> str:
        """The address of the optimizer: as given, else a SQLite file in the state directory."""
        return self.url or f"sqlite:///{(self.resolved_state_dir / 'bso.sqlite').absolute()}"


def read_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    state_dir: str | Path | None = None,
    job_id: str | None = None,
    recurrence_id: str | None = None,
) -> Settings:
    """Arguments first, then the environment. Raises InvalidUrl, InvalidSetting."""
    state = state_dir or environ.get("BSO_STATE_DIR") or None
    return Settings(
        url=_with_token(
            checked_url(url or setting(environ, "BSO_URL")), setting(environ, "BSO_TOKEN", is_private=True)
        ),
        state_dir=Path(state).expanduser() if state else None,
        job_id=_identifier("BSO_JOB_ID", job_id or environ.get("BSO_JOB_ID") or None),
        recurrence_id=_recurrence_id(recurrence_id, environ),
        world_size=_whole_number(environ, "WORLD_SIZE") or 1,
        rank=_whole_number(environ, "RANK"),
        local_rank=_whole_number(environ, "LOCAL_RANK"),
        trial_log=Path(environ["BSO_TRIAL_LOG"]) if environ.get("BSO_TRIAL_LOG") else None,
        probes=_switch(environ, "BSO_PROBING"),
    )


def _with_token(url: str | None, token: str | None) -> str | None:
    """The address of a gateway with BSO_TOKEN as its password, unless it has one."""
    if url is None or token is None or not url.startswith("http") or urlsplit(url).password is not None:
        return url
    scheme, _, rest = url.partition("://")
    name, at, host = rest.rpartition("@")
    return checked_url(f"{scheme}://{name if at else _NO_NAME}:{quote(token, safe='')}@{host}")


def checked_url(url: str | None) -> str | None:
    """The same URL if its scheme is one that the client knows. Raises InvalidUrl, which shows no password."""
    if url is None:
        return None
    hide_passwords_of(url)
    scheme = found[0] if (found := re.match(r"[a-z][a-z0-9+]*(?=:/)", url)) else ""
    if scheme.partition("+")[0] in _DATABASES:
        raise InvalidUrl(
            f"BSO_URL begins with {scheme!r}: a training talks to the optimizer, not to its database, whose address is "
            f"for the workers (BSO_DATABASE_URL); {EXPECTED}"
        )
    if scheme not in SCHEMES:
        begins = f"begins with {scheme!r}, which" if scheme else "begins with no scheme, and"
        raise InvalidUrl(f"BSO_URL {begins} is not an address of the optimizer: {EXPECTED}")
    if scheme == "sqlite":
        if url in ("sqlite:///", "sqlite:///:memory:") or not url.startswith("sqlite:///"):
            raise InvalidUrl(
                f"{shown_address(url)} names no file, and what is learnt must outlive the process: {EXPECTED}"
            )
    else:
        _check_host(url)
    return url


def _check_host(url: str) -> None:
    """Raise InvalidUrl, which never shows the URL: it may hold a password."""
    if problem := problem_of(url):
        raise InvalidUrl(f"BSO_URL cannot be used: {problem}; {EXPECTED}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidUrl(f"the host of BSO_URL stands in brackets, and is no IPv6 address: {EXPECTED}") from None
    if not parts.hostname:
        raise InvalidUrl(f"BSO_URL names no host: {EXPECTED}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidUrl(f"the port of BSO_URL is not between 1 and 65535: {EXPECTED}")


def _recurrence_id(given: str | None, environ: Mapping[str, str]) -> str | None:
    chosen = given or environ.get("BSO_RECURRENCE_ID") or None
    return _identifier("BSO_RECURRENCE_ID", chosen) if chosen else scheduled_run_id(environ)


def scheduled_run_id(environ: Mapping[str, str]) -> str | None:
    """The run id of the scheduler or launcher that started this process, as an identifier; None: none is known.

    In this order: torchrun, Slurm (with its array index), PBS, LSF, Grid Engine, Flux, AWS Batch. A requeued or
    elastically restarted run keeps its id, and so its recurrence.
    """
    for name, read in _SCHEDULERS.items():
        found = read(environ)
        if found:
            return re.sub(r"[^A-Za-z0-9._+:-]", "-", f"{name}-{found}")[:MAX_LENGTH]
    return None


def _torchrun(environ: Mapping[str, str]) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID")
    return None if run_id == "none" else run_id  # what torchrun calls a run without --rdzv-id


def _slurm(environ: Mapping[str, str]) -> str | None:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def _lsf(environ: Mapping[str, str]) -> str | None:
    job, index = environ.get("LSB_JOBID"), environ.get("LSB_JOBINDEX", "0")
    return f"{job}_{index}" if job and index != "0" else job


def _grid_engine(environ: Mapping[str, str]) -> str | None:
    if "SGE_ROOT" not in environ:  # JOB_ID alone is too common a name
        return None
    job, task = environ.get("JOB_ID"), environ.get("SGE_TASK_ID", "undefined")
    return f"{job}_{task}" if job and task != "undefined" else job


_SCHEDULERS: Mapping[str, Callable[[Mapping[str, str]], str | None]] = {
    "torchrun": _torchrun,
    "slurm": _slurm,
    "pbs": lambda environ: environ.get("PBS_JOBID"),
    "lsf": _lsf,
    "sge": _grid_engine,
    "flux": lambda environ: environ.get("FLUX_JOB_ID"),
    "batch": lambda environ: environ.get("AWS_BATCH_JOB_ID"),
}


def _identifier(name: str, value: str | None) -> str | None:
    problem = None if value is None else identifier_problem(value)
    if problem is not None:
        raise InvalidSetting(f"{name} {problem}")
    return value


def _switch(environ: Mapping[str, str], name: str) -> bool:
    """Whether something is on; it is unless the variable says ``off``."""
    text = environ.get(name, "").lower()
    if text not in ("", "on", "off"):
        raise InvalidSetting(f"{name} must be on or off, got {text!r}")
    return text != "off"


def _whole_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidSetting(f"{name} must be a whole number, got {text!r}")
    return int(text)
