"""Alerts and dashboard ask only for what workers count."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bso_workers.metrics import REASONS, RESULTS, Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def counted() -> set[str]:
    metrics = Metrics()
    metrics.commands.labels(type="begin_trial", result="decided")
    metrics.dead_letters.labels(reason="poison")
    metrics.over_quota.labels(login="ann", limit="jobs")
    for gauge in (metrics.job_models, metrics.job_trials, metrics.job_time, metrics.job_time_error):
        gauge.labels(job_id="vision")
    for gauge in (metrics.job_energy, metrics.job_energy_error):
        gauge.labels(job_id="vision", energy="measured")
    return {sample.name for metric in metrics.registry.collect() for sample in metric.samples}


def alerts() -> Iterator[str]:
    document = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= set(rule)
            yield rule["expr"]


def panels() -> Iterator[str]:
    for board in sorted((DEPLOY / "grafana").iterdir()):
        for panel in json.loads(board.read_text(encoding="utf-8"))["panels"]:
            yield from (target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("expression", sorted({*alerts(), *panels()}))
def test_an_expression_names_metrics_of_workers(expression: str) -> None:
    named = set(re.findall(r"\bbso_\w+", expression))
    assert named or "rabbitmq_queue_messages_ready" in expression
    assert named <= counted()


def test_what_an_alert_waits_for_is_there_from_the_start() -> None:
    """The increase of a series that begins at 1 is 0: the first dead letter would be missed."""
    samples = {
        (sample.name, sample.labels.get("reason") or sample.labels.get("result"))
        for metric in Metrics().registry.collect()
        for sample in metric.samples
    }
    assert {("bso_dead_letters_total", reason) for reason in REASONS} <= samples
    assert {("bso_commands_total", result) for result in RESULTS} <= samples
    assert ("bso_attention_needed_total", None) in samples


def test_every_alert_is_tested_to_fire() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text(encoding="utf-8"))
    tests = yaml.safe_load((DEPLOY / "prometheus/alerts-test.yaml").read_text(encoding="utf-8"))
    cases = [case for test in tests["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == fired


def test_every_alarm_of_the_page_has_a_rule() -> None:
    page = (DEPLOY.parent / "docs/platform-engineer.md").read_text(encoding="utf-8")
    table = page.partition("| metric | alarm |")[2].partition("\n\n")[0]
    promised = {*re.findall(r"bso_\w+", table), "bso.inbox", "bso.dead-letters"}
    assert len(promised) > 10
    expressions = " ".join(alerts())
    # Of a histogram the rules name the parts.
    missing = {name for name in promised if not re.search(rf"\b{re.escape(name)}(_bucket|_sum)?\b", expressions)}
    assert not missing


@pytest.mark.parametrize("metric", sorted(set(re.findall(r"bso_\w+", " ".join(alerts())))))
def test_every_rule_is_about_a_metric_of_the_page(metric: str) -> None:
    page = (DEPLOY.parent / "docs/platform-engineer.md").read_text(encoding="utf-8")
    table = page.partition("| metric | alarm |")[2].partition("\n\n")[0]
    assert re.sub("_(bucket|sum|count)$", "", metric) in table


@pytest.mark.parametrize(
    ("metric", "figure"), [("bso_batch_seconds", 2), ("bso_job_parks_total", 20), ("bso_parked_commands_total", 100)]
)
def test_the_page_has_the_figures_of_the_rules(metric: str, figure: int) -> None:
    page = (DEPLOY.parent / "docs/platform-engineer.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{metric}")]
    (rule,) = [rule for rule in alerts() if metric in rule]
    assert str(figure) in line
    assert rule.endswith(f"> {figure}")


@pytest.mark.parametrize("expression", sorted({*alerts(), *panels()}))
def test_the_brackets_of_an_expression_match(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
