"""How what pages show becomes HTML."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from bso.domain.foreign_text import shown
from bso.domain.quantities import (
    NOTHING,
    figure,
    joules,
    joules_within,
    listed,
    moment,
    more_or_less,
    number,
    percent,
    seconds,
    watts,
)
from bso.domain.savings import Tariff
from bso.domain.savings_in_words import co2_in_words, energy_in_words, money_in_words, time_in_words
from bso.domain.sentences import described, status_in_words
from bso_gateway.pages.contents import LOG_TOO_LONG, MOST_JOBS
from bso_gateway.pages.paths import PREFIX, job_path, trial_path
from bso_optimizer import DISTRIBUTION


class Renderer:
    """Makes pages of templates; all text is escaped, and characters that would hide or reorder it are shown."""

    def __init__(self, *, asks_for_token: bool, tariff: Tariff) -> None:
        self._templates = Environment(
            loader=PackageLoader("bso_gateway.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_plain,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "joules": joules,
            "joules_within": joules_within,
            "more_or_less": more_or_less,
            "seconds": seconds,
            "moment": moment,
            "number": number,
            "percent": percent,
            "watts": watts,
            "figure": figure,
            "described": described,
            "NOTHING": NOTHING,
            "PREFIX": PREFIX,
            "MOST_JOBS": MOST_JOBS,
            "LOG_TOO_LONG": LOG_TOO_LONG,
            "listed": listed,
            "version": version(DISTRIBUTION),
            "job_path": job_path,
            "trial_path": trial_path,
            "asks_for_token": asks_for_token,
            "status_in_words": status_in_words,
            "energy": energy_in_words,
            "duration": time_in_words,
            "grams": co2_in_words,
            "money": money_in_words,
            "tariff": tariff,
        }

    async def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page, or a part of one."""
        text = await asyncio.to_thread(self._templates.get_template(template).render, **values)
        return Response(text, status, media_type="text/html")


def _plain(value: Any) -> Any:
    """What a template prints: text without characters that would hide or reorder it."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
