"""`bso report`: what was saved, checked by hand from the exported trials."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Command
from tests.acceptance.recorded_jobs import LONG, record

NIGHTLY = "digits-nightly"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state_dir = tmp_path_factory.mktemp("recorded")
    record(state_dir)
    return state_dir


@pytest.fixture
def seen(bso: Command, recorded: Path) -> Command:
    bso.environment["BSO_STATE_DIR"] = str(recorded)
    return bso


def by_job(seen: Command, *arguments: str, **environment: str) -> dict[str, Any]:
    return {row["job"]: row for row in seen.json("report", *arguments, **environment)["rows"]}


def rows(text: str) -> Sequence[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_it_is_what_the_exported_trials_add_up_to(seen: Command) -> None:
    trials = rows(seen.ok("jobs", "export", NIGHTLY, "--what", "trials", "--format", "csv"))
    ended = [trial for trial in trials if trial["outcome"]]
    models = [trial for trial in ended if trial["outcome"] == "converged"]
    default = [float(trial["energy_j"]) for trial in models if trial["batch_size"] == "128"]
    assert default
    expected = len(models) * sum(default) / len(default) - sum(float(trial["energy_j"]) for trial in ended)
    found = by_job(seen)[NIGHTLY]
    assert found["saved_energy_j"]["value"] == pytest.approx(expected, rel=1e-6)
    assert (found["models"], found["trials"]) == (len(models), len(ended))
    spent_s = sum(float(trial["time_s"]) for trial in ended)
    times = [float(trial["time_s"]) for trial in models if trial["batch_size"] == "128"]
    saved_s = len(models) * sum(times) / len(times) - spent_s
    assert found["saved_time_s"]["value"] == pytest.approx(saved_s, rel=1e-6)
    assert found["saved_time_share"] == pytest.approx(saved_s / (saved_s + spent_s))


def test_assumed_energy_stands_apart(seen: Command) -> None:
    found = by_job(seen)
    assert found["laptop"]["saved_energy_j"] is None
    assert found["laptop"]["saved_assumed_energy_j"] is not None
    assert found["laptop"]["saved_co2_g"] is None
    assert found[NIGHTLY]["saved_assumed_energy_j"] is None


def test_what_cannot_be_compared_is_said(seen: Command) -> None:
    hopeless = by_job(seen)["hopeless"]
    assert (hopeless["models"], hopeless["saved_time_s"]) == (0, None)
    assert hopeless["trials_unknown"] == hopeless["trials"] > 0
    words = " ".join(seen.ok("report").split())
    assert "can be compared with nothing" in words
    assert "Nothing of them is in these sums" in words


def test_the_total_is_that_of_the_rows(seen: Command) -> None:
    report = seen.json("report")
    for name in ("saved_energy_j", "saved_time_s"):
        known = [row[name]["value"] for row in report["rows"] if row[name] is not None]
        assert report["total"][name]["value"] == pytest.approx(sum(known))
    assert report["total"]["trials"] == sum(row["trials"] for row in report["rows"])


def test_by_team_by_month_and_by_pattern(seen: Command) -> None:
    teams = [row["team"] for row in seen.json("report", "--by", "team")["rows"]]
    assert {"vision", "digits"} < {*teams}
    assert by_job(seen, "--jobs", "vision-*").keys() == {LONG}
    months = seen.json("report", "--by", "month")["rows"]
    total = seen.json("report")["total"]
    assert sum(row["trials"] for row in months) == total["trials"]
    assert seen.json("report", "--since", "2999-01")["rows"] == []
    assert seen.json("report", "--until", "1999-12")["total"]["trials"] == 0


def test_money_and_co2_need_a_price_and_a_factor(seen: Command) -> None:
    plain = by_job(seen)[NIGHTLY]
    assert plain["saved_money"] is None
    kwh = plain["saved_energy_j"]["value"] / 3.6e6
    assert plain["saved_co2_g"]["value"] == pytest.approx(kwh * 473.0)
    hours = plain["saved_gpu_time_s"]["value"] / 3600.0
    rated = by_job(
        seen,
        *("--price-per-kwh", "0.25", "--co2-g-per-kwh", "100"),
        BSO_PRICE_PER_GPU_HOUR="2",
        BSO_PRICE_PER_KWH="9",
    )[NIGHTLY]
    assert rated["saved_money"]["value"] == pytest.approx(0.25 * kwh + 2.0 * hours), "an option goes before a variable"
    assert rated["saved_co2_g"]["value"] == pytest.approx(100.0 * kwh)
    assert "Set BSO_PRICE_PER_KWH" in seen.ok("report")
    assert "USD" in seen.ok("report", "--price-per-kwh", "0.25", BSO_CURRENCY="USD")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--since", "yesterday"), 2, "expected a month such as 2026-01, got 'yesterday'"),
        (("--price-per-kwh", "-1"), 1, "BSO_PRICE_PER_KWH must be a number from 0 to 1e+09, got -1.0"),
        (("--format", "pdf"), 2, "'pdf' is not one of"),
    ],
)
def test_what_was_typed_wrongly_is_said(seen: Command, arguments: Sequence[str], exit_code: int, words: str) -> None:
    done = seen("report", *arguments)
    assert done.returncode == exit_code
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_csv_and_markdown_have_the_same_rows(seen: Command, tmp_path: Path) -> None:
    found = {row["job"]: row for row in rows(seen.ok("report", "--format", "csv"))}
    reported = by_job(seen)
    assert found.keys() == reported.keys()
    assert float(found[NIGHTLY]["saved_energy_j"]) == reported[NIGHTLY]["saved_energy_j"]["value"]
    assert float(found[NIGHTLY]["saved_energy_j_error"]) == reported[NIGHTLY]["saved_energy_j"]["error"]
    page = tmp_path / "report.md"
    seen.ok("report", "--format", "markdown", "--output", page)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("| job | models |")
    assert sum(line.startswith("| ") for line in lines) == len(reported) + 3
    done = seen("report", "--output", tmp_path / "no" / "folder.csv", "--format", "csv")
    assert done.returncode == 1
    assert "the report cannot be written to" in done.stderr


def test_without_any_job_it_says_so(bso: Command) -> None:
    done = bso("report")
    assert done.returncode == 0
    assert "no training has used" in done.stderr
    assert bso.json("report")["rows"] == []


def test_the_list_and_the_job_say_it_too(seen: Command) -> None:
    [job] = [one for one in seen.json("jobs", "list") if one["job_id"] == NIGHTLY]
    assert job["saved"]["energy_j"] == by_job(seen)[NIGHTLY]["saved_energy_j"]
    assert "Saved, against the default batch size at full power:" in " ".join(seen.ok("jobs", "show", NIGHTLY).split())
    shown = seen.json("jobs", "show", LONG)["job"]["saved"]
    assert {(one["version_number"], one["hardware"][:8]) for one in shown} >= {(1, "8 x NVID"), (2, "4 x NVID")}
