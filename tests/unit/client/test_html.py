"""What a notebook shows of an optimizer and of a trial."""

import copy
import pickle
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from bso_client import BatchSizeOptimizer, Trial
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer
from tests.unit.client.fixtures import MakeOptimizer

HOSTILE = '<script>alert("1")</script>'


def shown(thing: BatchSizeOptimizer | Trial) -> str:
    """What a notebook shows. It must be well-formed: an element left open would change the rest of the notebook."""
    html = thing._repr_html_()
    assert html is not None
    ET.fromstring(f"<div>{html}</div>")
    return html


def words(html: str) -> str:
    """The same without its elements."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_trial_is_shown_with_its_reason_and_its_metric_over_the_epochs(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        assert "not begun" in words(shown(trial))
        with trial:
            trial.on_evaluate(0.5)
            html = shown(trial)
            assert "running" in words(html)
            assert "64: nothing has converged yet" in words(html)
            assert "0.5, target 0.9" in words(html)
            assert html.count("<svg") == 2
            trial.on_evaluate(0.95)
        assert "converged" in words(shown(trial))


def test_the_job_is_shown_as_the_optimizer_knows_it(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    html = shown(bso)
    assert "1 in 1 recurrences" in words(html)
    assert "best batch size 64 (default 64)" in words(html)
    assert "<svg" in html


def test_before_the_first_trial_and_without_an_answer_the_plain_text_is_shown(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    assert bso._repr_html_() is None
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    optimizer.is_away = True
    assert bso._repr_html_() is None


def test_text_from_outside_is_shown_as_text(make_bso: MakeOptimizer) -> None:
    bso = make_bso(hardware=replace(HARDWARE, gpu_model=HOSTILE))
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
        assert "<script>" not in shown(trial)
    assert "<script>" not in shown(bso)
    assert "&lt;script&gt;" in shown(bso)


def test_a_copy_of_a_trial_is_shown_without_pictures(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.5)
            for other in (pickle.loads(pickle.dumps(trial)), copy.copy(trial)):
                assert "running" in words(shown(other))
            trial.on_evaluate(0.95)
