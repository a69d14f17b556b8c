"""What groups of jobs wasted, as parts of the page of results, and as a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from tests.benchmarks.decisions.groups import LATE, SOON, TRACES, Kind
from tests.benchmarks.decisions.known_noise import KNOWING
from tests.benchmarks.decisions.markdown import cell_words, interval_words, markdown
from tests.benchmarks.decisions.probed import PROBED
from tests.benchmarks.decisions.regrets import GroupRegrets
from tests.benchmarks.decisions.worlds import CHANGED

SOON_ALONE = SOON - CHANGED + 1
HELD_AGAINST = {
    (Kind.MOVED, TRACES): f"mean 0.7 in the next {SOON_ALONE}",
    (Kind.RENEWED, TRACES): f"mean 0.5 in the next {SOON_ALONE}",
}
"""What other rules wasted in an experiment on the traces published with Zeus, where something is known."""
_COMPARED = (CURVE, PRUNING_THOMPSON)
SHOWN_FROM = 21
"""The first recurrence in the picture."""
_WASTED = (
    "A job wastes what it pays more than a job which always runs the batch size that is truly the best at that time, "
    "with the same luck, in whole trainings with that batch size. In brackets the 95 % interval by a bootstrap over "
    "seeds, on measured traces over workloads and seeds, then the worst of the problems."
)
_HELD_AGAINST = (
    "*Held against* is what a policy wasted in an experiment that keeps what was known before the change, on the same "
    "traces."
)
_INTRODUCTIONS = {
    Kind.MOVED: f"Jobs run on one kind of GPU for {CHANGED - 1} recurrences, and then on another one, where epochs "
    "cost something else. On measured traces each workload moves from each GPU to each other one; on made truths from "
    "the GPU `made-2`, whose costs are drawn. With probes, the first trainings on a kind of GPU probe what epochs with "
    "other batch sizes cost on it, and pay for that.",
    Kind.RENEWED: f"Jobs are registered with another target metric after {CHANGED - 1} recurrences, which makes a new "
    "version of the job. On measured traces each workload on each GPU goes from the next easier and from the next "
    "harder target of the trace to its own one, as far as half of the runs of the default batch size reach it; on made "
    "truths from 0.9 to a target that is drawn between 0.80 and 0.95.",
    Kind.QUIET: f"Costs do not vary here. `{CURVE}` has to learn that; *knowing* is the same policy whose only "
    "hypothesis is that epoch costs vary by 2 % between runs. Both have the same luck, and the difference is taken job "
    "by job.",
    Kind.PROBED: "The same jobs with and without probes, on made truths, with the same luck: differences are taken job "
    "by job, at true prices, the noise apart, and with what probing took. What a trial probes shares the factor of its "
    "run. In brackets the 95 % interval by a bootstrap over seeds, then the worst of the problems.",
}


def sections_of(groups: Sequence[GroupRegrets]) -> list[str]:
    """Headings, sentences and tables, for each kind of group."""
    return [
        part
        for kind in Kind
        if (found := [one for one in groups if one.group.kind is kind])
        for part in (
            f"## {_heading(kind)}",
            *_body(kind, found, groups),
        )
    ]


def draw(groups: Sequence[GroupRegrets], path: Path) -> None:
    """The mean waste by recurrence around the changes, an axis for each group whose jobs change."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    changed = changed_of(groups)
    picture = Figure(figsize=(12, 3.4 * ((len(changed) + 1) // 2)), layout="constrained")
    FigureCanvasAgg(picture)
    every = picture.subplots((len(changed) + 1) // 2, 2, squeeze=False).flat
    for axes, one in zip(every, changed, strict=False):
        _draw_one(axes, one)
    for axes in list(every)[len(changed) :]:
        axes.set_visible(False)
    next(iter(picture.axes)).legend(frameon=False, fontsize=8)
    picture.savefig(path, dpi=110)


def changed_of(groups: Sequence[GroupRegrets]) -> list[GroupRegrets]:
    """The groups whose jobs change on the way."""
    return [one for one in groups if one.group.kind in (Kind.MOVED, Kind.RENEWED)]


def _body(kind: Kind, found: Sequence[GroupRegrets], groups: Sequence[GroupRegrets]) -> tuple[str, str]:
    if kind is Kind.QUIET:
        return f"{_INTRODUCTIONS[kind]} {_WASTED}", _knowing_table(found)
    if kind is Kind.PROBED:
        return _INTRODUCTIONS[kind], _probing_table(found)
    return f"{_INTRODUCTIONS[kind]} {_WASTED} {_HELD_AGAINST}", _change_table(found, groups)


def _heading(kind: Kind) -> str:
    if kind is Kind.QUIET:
        return "No noise, against the same policy that knows it: trainings wasted"
    if kind is Kind.PROBED:
        return "Probes under noise, against the same jobs without probes: trainings wasted"
    return f"{kind.value[0].upper()}{kind.value[1:]} after {CHANGED - 1} recurrences: trainings wasted"


def _change_table(found: Sequence[GroupRegrets], groups: Sequence[GroupRegrets]) -> str:
    compared = (*_COMPARED, *(name for name in PROBED if any(name in one.group.policies for one in found)))
    lines = [
        (_jobs(one), words, *(cells.get(policy, "") for policy in compared), last)
        for one in found
        for words, cells, last in (*_waste_rows(one), *_anew(one, groups))
    ]
    return markdown(("jobs", "quantity", *compared, "held against"), lines)


def _waste_rows(one: GroupRegrets) -> Iterator[tuple[str, dict[str, str], str]]:
    """What is counted, the cell of each policy, and what it is held against."""
    known, policies = HELD_AGAINST.get((one.group.kind, one.group.source), ""), one.group.policies
    horizons = [until for until in (SOON, LATE) if until <= one.group.recurrences]
    for until in horizons:
        means = {policy: cell_words(one.mean(one.since_change(policy, until))) for policy in policies}
        yield f"mean, recurrences {CHANGED} to {until}", means, known if until == SOON else ""
    usual, probed = one.since_change(CURVE, SOON), [policy for policy in policies if policy in PROBED]
    if probed:
        more = {policy: cell_words(one.mean(one.since_change(policy, SOON) - usual), digits=2) for policy in probed}
        yield f"the same over recurrences {CHANGED} to {SOON}, less what is wasted without probes", more, ""
    tails = {policy: interval_words(one.tail(one.since_change(policy, horizons[-1]))) for policy in policies}
    yield f"99 % of the jobs waste at most, recurrences {CHANGED} to {horizons[-1]}", tails, ""


def _anew(one: GroupRegrets, groups: Sequence[GroupRegrets]) -> Iterator[tuple[str, dict[str, str], str]]:
    """What a change would cost if nothing were known after it."""
    words = f"for comparison: the first {SOON_ALONE} recurrences of a job that never changes"
    for other in groups:
        if other.group.kind is Kind.QUIET and other.group.source == one.group.source:
            yield words, {CURVE: cell_words(other.mean(other.until(CURVE, SOON_ALONE)))}, ""


def _knowing_table(found: Sequence[GroupRegrets]) -> str:
    lines = []
    for one in found:
        for until in (SOON_ALONE, LATE):
            mine, other = (one.until(policy, until) for policy in (CURVE, KNOWING))
            cells = (cell_words(one.mean(values), digits=2) for values in (mine, other, mine - other))
            lines.append((_jobs(one), f"first {until} recurrences", *cells))
    return markdown(("jobs", "wasted in the", CURVE, "knowing", "difference"), lines)


def _probing_table(found: Sequence[GroupRegrets]) -> str:
    lines = []
    for one in found:
        for until in (SOON_ALONE, SOON):
            usual = one.until(CURVE, until)
            cells = [cell_words(one.mean(usual), digits=2)]
            for policy in PROBED:
                values = one.until(policy, until)
                cells += [cell_words(one.mean(each), digits=2) for each in (values, values - usual)]
            lines.append((_jobs(one), f"first {until} recurrences", *cells))
    columns = [column for policy in PROBED for column in (policy, "difference")]
    return markdown(("jobs", "wasted in the", CURVE, *columns), lines)


def _jobs(one: GroupRegrets) -> str:
    kind = "measured" if one.group.source == TRACES else "made"
    return f"{one.group.source} ({len(one.group.worlds)} {kind} problems, {one.seeds} jobs each)"


def _draw_one(axes: Any, one: GroupRegrets) -> None:
    for policy in one.group.policies:
        curve = one.since_change_by_recurrence(policy)[SHOWN_FROM - 1 :]
        axes.plot(range(SHOWN_FROM, SHOWN_FROM + len(curve)), curve, label=policy, linewidth=1.8)
    axes.axvline(CHANGED - 0.5, color="#9aa5b1", linewidth=0.8, linestyle="--")
    axes.set_title(f"{one.group.kind.value}, {one.group.source}", loc="left", fontsize=10)
    axes.set(xlabel="recurrence", ylabel=f"wasted since recurrence {CHANGED - 1} [trainings]")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
