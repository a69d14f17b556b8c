"""The page of results: tables in Markdown, and pictures beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill

from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from tests.benchmarks.decisions import group_report, rows
from tests.benchmarks.decisions.jobs import COSTLIER, JobFigures
from tests.benchmarks.decisions.markdown import cell_words, markdown
from tests.benchmarks.decisions.regrets import GroupRegrets
from tests.benchmarks.decisions.round_robin import ROUND_ROBIN
from tests.benchmarks.decisions.worlds import NO_NOISE, SPIKES, STEP_NOISES
from tests.benchmarks.figures import Figure
from tests.benchmarks.printing import table_of

POLICIES = (CURVE, PRUNING_THOMPSON, ROUND_ROBIN)
Jobs = Mapping[tuple[str, str], Sequence[JobFigures]]
"""The jobs of a row (its name) under a policy, in the same order for every policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was simulated; ``steps`` are the rows with a step, ``traces`` the figures of measured traces.

    ``groups`` are jobs whose regrets count.
    """

    purpose: str
    seeds: Sequence[int]
    noises: Sequence[str]
    jobs: Jobs
    steps: Jobs
    groups: Sequence[GroupRegrets] = field(default_factory=tuple)
    traces: Sequence[Figure] = field(default_factory=tuple)


def page_of(results: Results) -> str:
    """The page in Markdown."""
    first = results.jobs[results.noises[0], CURVE]
    worlds = len({job.world for job in first})
    preface = (
        f"Made by `make decisions`: {worlds} worlds (six families of truths, each with the cheapest, a middle and the "
        f"costliest batch size as default) of {len(first) // worlds} jobs for each noise, seeds {results.seeds[0]} to "
        f"{results.seeds[-1]}, for {results.purpose}. All costs are true ones, without the noise, unless they are said "
        "to be paid. In brackets the 95 % interval by a bootstrap over seeds, then the worst family of truths (its "
        "three defaults together) and the worst world."
    )
    return "\n\n".join(
        [
            "# Decisions in a noisy world",
            preface,
            "## Cost over the best batch size [%]: the five trials before recurrence 30",
            _table(results.jobs, results.noises, rows.RECENT),
            *[
                part
                for recurrence in rows.CHECKED
                for part in (
                    f"## Cost over the best [%] of the batch size believed best after recurrence {recurrence}",
                    _table(results.jobs, results.noises, rows.believed_at(recurrence)),
                )
            ],
            "![Cost of what is believed best, by recurrence](believed.png)",
            "## Trainings wasted until recurrence 30, over those of the same jobs without noise",
            "At true prices, the noise apart.",
            _wasted(results, rows.WASTED),
            "The same as it was paid: above a job that always runs the best batch size with the same luck.",
            _wasted(results, rows.WASTED_AS_PAID),
            f"## Jobs [%] that end with a batch size truly over {100 * (COSTLIER - 1):.0f} % costlier than the default",
            _table(*_with_all(results.jobs, results.noises, but=SPIKES), rows.HARMED),
            "## Flat truths: cost of what is believed best in the end over that of the default [%]",
            _table(*_with_all(_flat(results.jobs), results.noises), rows.OVER_DEFAULT),
            f"## Worlds in which `{CURVE}` is costlier than `{PRUNING_THOMPSON}` (paired, Holm's correction)",
            _costlier(results),
            "## Change points where nothing changes [% of trials]; beliefs off by more than a factor of 2 [%]",
            _stationary(results),
            "## A lasting step, x1.5 at recurrence 31: recurrences until half of it is expected",
            f"{_count(results.steps)} jobs a row, on valleys.",
            _steps(results),
            *group_report.sections_of(results.groups),
            *(
                ["![Trainings wasted by recurrence, around a move and around a new version](regret.png)"]
                if group_report.changed_of(results.groups)
                else []
            ),
            *(["## Measured traces", f"```text\n{table_of(results.traces)}\n```"] if results.traces else []),
        ]
    )


def write(results: Results, folder: Path) -> Path:
    """Write the page, and its pictures beside it; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw(results, folder / "believed.png")
    if group_report.changed_of(results.groups):
        group_report.draw(results.groups, folder / "regret.png")
    path = folder / "decisions.md"
    path.write_text(f"{_wrapped(page_of(results))}\n", encoding="utf-8")
    return path


def _wrapped(page: str) -> str:
    """The page with prose in lines that people can read; tables, titles and pictures stay as they are."""
    prose, *fenced = page.split("```")
    lines = [
        line if line.startswith(("|", "#", "!")) else fill(line, 120, break_long_words=False, break_on_hyphens=False)
        for line in prose.split("\n")
    ]
    return "```".join(["\n".join(lines), *fenced])


def _table(jobs: Jobs, noises: Sequence[str], quantity: rows.Quantity) -> str:
    return markdown(
        ("noise", *POLICIES),
        [(noise, *(cell_words(rows.cell(jobs[noise, policy], quantity)) for policy in POLICIES)) for noise in noises],
    )


def _flat(jobs: Jobs) -> Jobs:
    return {row: [job for job in found if job.is_flat] for row, found in jobs.items()}


def _with_all(jobs: Jobs, noises: Sequence[str], *, but: str = "") -> tuple[Jobs, tuple[str, ...]]:
    """The rows, and one of the jobs of all noises together."""
    together = [noise for noise in noises if noise not in (NO_NOISE, but)]
    name = f"all noises{' but spikes' if but else ''}"
    pooled = {(name, policy): [job for noise in together for job in jobs[noise, policy]] for policy in POLICIES}
    return {**jobs, **pooled}, (*noises, name)


def _count(jobs: Jobs) -> int:
    """Jobs of one row under one policy."""
    return len(next(iter(jobs.values())))


def _wasted(results: Results, quantity: rows.Quantity) -> str:
    quiet, *noisy = results.noises
    compared = (CURVE, PRUNING_THOMPSON)
    means = (rows.cell(results.jobs[quiet, policy], quantity).mean for policy in compared)
    table = [(quiet, *(f"{mean:.2f} runs" for mean in means))]
    for noise in noisy:
        ratios = (rows.ratio(results.jobs[noise, one], results.jobs[quiet, one], quantity) for one in compared)
        table.append((noise, *(f"x {cell_words(ratio, digits=2)}" for ratio in ratios)))
    return markdown(("noise", *compared), table)


def _costlier(results: Results) -> str:
    compared = {noise: (results.jobs[noise, CURVE], results.jobs[noise, PRUNING_THOMPSON]) for noise in results.noises}
    lines = [(one.noise, one.world, f"+{one.difference:.1f}") for one in rows.costlier_worlds(compared)]
    return markdown(("noise", "world", "difference [%]"), lines or [("none", "", "")])


def _stationary(results: Results) -> str:
    def both(noise: str, policy: str) -> str:
        jobs = results.jobs[noise, policy]
        return f"{rows.change_point_share(jobs):.2f}; {rows.expected_sanity(jobs):.1f}"

    compared = (CURVE, PRUNING_THOMPSON)
    return markdown(
        ("noise", *compared), [(noise, *(both(noise, one) for one in compared)) for noise in results.noises]
    )


def _steps(results: Results) -> str:
    def words(noise: str) -> str:
        found = rows.followed_within(results.steps[noise, CURVE], step=1.5, since=31)
        return "not until the end" if found is None else str(found)

    return markdown(("step", CURVE), [(name, words(name)) for name in STEP_NOISES])


def _draw(results: Results, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(12, 6.4), layout="constrained")
    FigureCanvasAgg(picture)
    every = picture.subplots(2, (len(results.noises) + 1) // 2, squeeze=False, sharex=True, sharey=True).flat
    for axes, noise in zip(every, results.noises, strict=False):
        for policy in POLICIES:
            curve = rows.believed_curve(results.jobs[noise, policy])
            axes.plot(range(1, len(curve) + 1), curve, label=policy, linewidth=1.8)
        axes.set_title(noise, loc="left", fontsize=10)
        axes.set(xlabel="recurrence", ylabel="believed best: over the best [%]", ylim=(0, 60))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    next(iter(picture.axes)).legend(frameon=False, fontsize=8)
    picture.savefig(path, dpi=110)
