"""Options that several commands share, and how they are read."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bso.credentials import setting
from bso.domain.errors import Misconfigured
from bso_cli.refusals import CommandRefused
from bso_cli.settings import Places, places

if TYPE_CHECKING:
    from pydantic import BaseModel

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of words for people.")]

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The optimizer: sqlite:////path/to/file, amqp(s)://user@host/vhost, https://host; its password rather in "
        "BSO_URL or BSO_URL_FILE, as others see options (ps). [default: BSO_URL, else a SQLite file in the state "
        "directory]",
        show_default=False,
    ),
]

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="The database: mysql://user@host/bso, postgresql://..., or sqlite:////path/to/file.db; with its password "
        "rather in BSO_DATABASE_URL or BSO_DATABASE_URL_FILE, as others see options (ps). "
        "[default: BSO_DATABASE_URL, else BSO_URL where it is sqlite, else the state directory's file]",
        show_default=False,
    ),
]

BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The broker, with an operator's login; rather in BSO_AMQP_URL or BSO_AMQP_URL_FILE, as others see "
        "options (ps). [default: BSO_AMQP_URL, else BSO_URL]",
        show_default=False,
    ),
]

TypesOption = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only events of this type, e.g. trial_ended; may be repeated."),
]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="[default: standard output]", show_default=False)
]

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job_id.", show_default=False)]

LoginArgument = Annotated[
    str, typer.Argument(metavar="LOGIN", help="The name of a login of the broker.", show_default=False)
]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let typer read the fields of a dataclass, the type of the parameter ``options``, as options of a command."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    kind = own.pop("options").annotation
    hints = get_type_hints(kind, include_extras=True)
    read = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(kind)
    ]

    @wraps(command)
    def run(**words: Any) -> None:
        command(options=kind(**{each.name: words.pop(each.name) for each in read}), **words)

    run.__signature__ = inspect.Signature([*own.values(), *read])  # type: ignore[attr-defined]  # functions may have one
    return run


_DAY = 86400.0
_PANELS = (None, "Work", "Watching", "Times")


def with_settings(
    command: Callable[..., None],
    settings: type[BaseModel],
    *,
    prefix: str,
    written: Mapping[str, str],
    panels: Mapping[str, str],
    url_default: str = "",
) -> None:
    """Let typer read each field of a settings class as an option of a command, with its description and its default.

    ``written`` are fields that are read from text, with what stands for it in the help; ``panels`` the headings of
    fields by the beginnings of their names. ``url_default`` says what a field ``url`` is without the option.
    """
    found = []
    for name, field in settings.model_fields.items():
        kind: Any = str if name in written else field.annotation
        panel = "Times" if kind is float else next((panels[each] for each in panels if name.startswith(each)), "Work")
        option = name.replace("_", "-")
        default = f"{prefix}{name.upper()}" if field.is_required() else _in_words(field.default)
        default = url_default if name == "url" and url_default else default
        named = typer.Option(
            None,
            f"--{option}/--no-{option}" if kind is bool else f"--{option}",
            metavar=written.get(name) or _metavar(option, kind),
            help=f"{field.description} [{default}]",
            rich_help_panel=None if field.is_required() else panel,
            show_default=False,
        )
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=named, annotation=kind | None))
    found.sort(key=lambda option: _PANELS.index(option.default.rich_help_panel))
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]  # functions may have one


def _metavar(option: str, kind: Any) -> str | None:
    word = option.rpartition("-")[2].upper()
    return word if kind is str or word == "PORT" else {float: "SECONDS"}.get(kind)


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return f"{default / _DAY:g} days" if default >= _DAY else f"{default:g}"
    return str(default or "none")


def known_types(types: Sequence[str] | None) -> Sequence[str]:
    """The event types that ``TypesOption`` names, none for all of them. Raises typer.BadParameter."""
    from bso.schema.codec import all_events

    for name in types or ():
        if name not in all_events():
            words = f"there is no event type {name!r}; known are {', '.join(all_events())}"
            raise typer.BadParameter(words, param_hint=["--type"])
    return types or ()


def operators_broker(url: str | None, *, what: str) -> str:
    """The address of the broker for an operator's command. Raises Misconfigured: ``what`` are the broker's."""
    address = url or known_broker(here())
    if address is None or not address.startswith("amqp"):
        raise Misconfigured(f"{what} are the broker's: set BSO_AMQP_URL, or give --url amqp://user:password@host/")
    return address


def known_broker(places: Places) -> str | None:
    """The address of the broker, the workers' or the trainings'; None: none is known here."""
    known = (setting(os.environ, "BSO_AMQP_URL"), places.url)
    return next((address for address in known if address is not None and address.startswith("amqp")), None)


def here(*, url: str | None = None, database_url: str | None = None, state_dir: Path | None = None) -> Places:
    """The places that options and this process' environment name."""
    return places(os.environ, url=url, database_url=database_url, state_dir=state_dir)


def beta_knob(given: float) -> float | None:
    """The early-stopping threshold that ``--beta`` gives; None: never stop early. Raises CommandRefused."""
    if 0 < given < 1:
        raise CommandRefused(f"--beta {given:g}: expected 1 or more, or 0 to never stop early")
    return given or None
