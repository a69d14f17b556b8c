"""Alerts and dashboard ask only for what workers count."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bso_workers.metrics import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def counted() -> set[str]:
    metrics = Metrics()
    metrics.commands.labels(type="begin_trial", result="decided")
    metrics.dead_letters.labels(reason="poison")
    return {sample.name for metric in metrics.registry.collect() for sample in metric.samples}


def alerts() -> Iterator[str]:
    document = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= set(rule)
            yield rule["expr"]


def panels() -> Iterator[str]:
    document = json.loads((DEPLOY / "grafana/workers.json").read_text(encoding="utf-8"))
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("expression", [*alerts(), *panels()])
def test_an_expression_names_metrics_of_workers(expression: str) -> None:
    named = set(re.findall(r"\bbso_\w+", expression))
    assert named
    assert named <= counted()


@pytest.mark.parametrize("expression", [*alerts(), *panels()])
def test_the_brackets_of_an_expression_match(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
