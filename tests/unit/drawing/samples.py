"""Trials, jobs and curves as the pictures get them, and what tests read in a picture."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.replies import ArmDescription, KindDescription
from bso.domain.trial import Outcome, Trial, TrialState
from bso.drawing import CLASSES, Curve

SVG = "{http://www.w3.org/2000/svg}"
HARDWARE = HardwareKind(gpu_model="V100", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
SPEC = JobSpec(batch_sizes=(16, 32, 64, 128), default_batch_size=128, target_metric=0.9, policy="curve")
HOSTILE = "</svg><script>alert('\"&\x1b[2J\u202e')</script>"


def trial(number: int, *, outcome: Outcome | None = Outcome.CONVERGED, cost: float = 1300.0, **changes: Any) -> Trial:
    """A trial of the sample job, ended unless ``outcome`` is None."""
    values: dict[str, Any] = {
        "trial_number": number,
        "trial_id": f"trial-{number}",
        "version_number": 1,
        "recurrence_id": f"night-{number}",
        "attempt": 1,
        "batch_size": 64,
        "hardware": HARDWARE,
        "reason": "exploring",
        "is_unbounded": False,
        "started_at": datetime(2026, 3, 4, tzinfo=UTC),
        "state": TrialState.RUNNING if outcome is None else TrialState.ENDED,
        "outcome": outcome,
        "cost": cost,
    }
    return Trial(**values | changes)


def arm(
    batch_size: int, *, mean: float | None = 1000.0, deviation: float | None = 100.0, trials: int = 3
) -> ArmDescription:
    """A batch size as the optimizer describes it."""
    return ArmDescription(
        batch_size=batch_size,
        status="arm",
        trials_with_cost=trials,
        convergences=trials,
        mean_cost=mean,
        posterior_mean=mean,
        posterior_std=deviation,
    )


def kind(*arms: ArmDescription, best: int | None = 64, **changes: Any) -> KindDescription:
    """The sample job on its hardware kind."""
    values: dict[str, Any] = {
        "hardware": HARDWARE.describe(),
        "hardware_key": HARDWARE.key,
        "stage": None,
        "round_number": None,
        "reference": None,
        "best_batch_size": best,
        "needs_attention": False,
        "change_points": 0,
        "arms": arms,
    }
    return KindDescription(**values | changes)


def curve(number: int, metrics: Sequence[float], *, batch_size: int = 64, is_running: bool = False) -> Curve:
    """A training with one metric after each epoch."""
    points = tuple((float(epoch), metric) for epoch, metric in enumerate(metrics, start=1))
    return Curve(trial_number=number, batch_size=batch_size, points=points, is_running=is_running)


def parsed(picture: str) -> ET.Element:
    """The picture as a tree; it has to be XML."""
    return ET.fromstring(picture)


def description(picture: str) -> str:
    """What the picture says of itself to those who do not see it."""
    return parsed(picture).findtext(f"{SVG}desc") or ""


def with_class(picture: str, css_class: str) -> list[ET.Element]:
    """The elements that a page finds by a class."""
    return [one for one in parsed(picture).iter() if css_class in one.get("class", "").split()]


def tooltips(picture: str) -> list[str]:
    """What a browser says of each mark."""
    root = parsed(picture)
    return [one.text or "" for one in root.iter(f"{SVG}title") if one is not root.find(f"{SVG}title")]


def words(picture: str) -> list[str]:
    """All that is written in the picture: ticks, titles, the legend."""
    return [one.text or "" for one in parsed(picture).iter(f"{SVG}text")]


def places(picture: str) -> Iterator[tuple[float, float]]:
    """The points that elements of the picture name, circles by the ends of their radius."""
    for one in parsed(picture).iter():
        steps = re.findall(r"[ML]([^MLZ]+)", one.get("d", ""))
        yield from ((float(x), float(y)) for x, y in (step.split() for step in steps))
        for x, y in (("x", "y"), ("cx", "cy")):
            if one.get(x) is not None:
                radius = float(one.get("r", "0"))
                at = float(one.get(x, "")), float(one.get(y, ""))
                yield at[0] - radius, at[1] - radius
                yield at[0] + radius, at[1] + radius


def written_spans(picture: str) -> Iterator[tuple[float, float]]:
    """Where each text begins and ends from left to right, with letters of an ordinary font."""
    for one in parsed(picture).iter(f"{SVG}text"):
        letter, x = 0.54 * float(one.get("font-size", "12")), float(one.get("x", ""))
        width = len(one.text or "") * letter
        left = {None: x, "middle": x - width / 2, "end": x - width}[one.get("text-anchor")]
        yield left, left + width


def assert_sound(picture: str, *, width: int = 720, height: int = 300) -> None:
    """It is XML, marks and text lie inside, nothing in it needs or does anything, and each class is a known one."""
    root = parsed(picture)
    assert root.get("viewBox") == f"0 0 {width} {height}"
    for x, y in places(picture):
        assert math.isfinite(x)
        assert 0 <= x <= width
        assert 0 <= y <= height
    for left, right in written_spans(picture):
        assert left >= 0
        assert right <= width
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= ELEMENTS
    attributes = {name for one in root.iter() for name in one.attrib}
    assert not [name for name in attributes if name == "style" or name.startswith("on") or "}" in name]
    assert "url(" not in picture
    assert _classes(root.iter()) <= set(CLASSES)


ELEMENTS = {"svg", "title", "desc", "g", "a", "path", "rect", "circle", "text"}


def _classes(elements: Iterable[ET.Element]) -> set[str]:
    return {name for one in elements for name in one.get("class", "").split()}
