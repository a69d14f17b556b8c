"""Which batch size the next trial runs, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.frozen_values import replace
from bso.domain.policy import Choice
from bso.domain.quantities import figure, joules, percent
from bso.domain.replies import Confidence
from bso.policies.curve import normal
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.memory import SECOND_LOOK
from bso.policies.curve.standing import Standing
from bso.policies.curve.values import Value, horizon, value_of

TOGETHER = (1, 2, 4, 8)
"""Runs of a batch size that are weighed together before one of them is chosen."""
_ABORTS_BEFORE_INCUMBENT = 2
_OCTAVE = 1.0 + 1e-9
_SPREAD = 2.0 + 1e-9  # octaves around the default, for recurrences that overlap before anything has converged
_LOOK_COST = 0.05  # of a second look: with some luck at most so much more expensive
_LOOK_PACE, _LOOK_GROWTH = 0.1, 2.5  # how often, and how much more rarely after each
_LEAST_MORE = 0.01  # what seems no more expensive is looked at like this
_FEW, _CHANCE = 3, 0.02  # converged batch sizes; with so few, of what is worth a look with this probability
_CHANCE_PACE, _CHANCE_GROWTH = 0.2, 2.0
_MOST_EXPENSIVE = 5.0
_RISK, _RISK_PACE = 0.02, 0.03  # that the incumbent is a loss; of all recurrences, what to find out may cost
_LEAST_PRICE = 0.02  # runs
_ONE_IN_TWENTY = 1.645  # standard deviations
_NOTHING = 0.005  # runs; less is nothing
_JUMP_RISK = 0.03  # for each octave beyond the first: that a run fails, which costs a whole one
_CAUTION, _DISTRUST = 5.0, 0.7  # while nothing converges: for a failure's probability, and for each failure seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a choice depends on.

    ``recurrences`` counts those before this one, ``aborts`` the failed trials of this one; ``is_last``: no attempt is
    left after this one. ``is_unproven``: all that is known of epochs is inherited from another version or job;
    ``is_uncounted``: all that is known of epochs comes from runs of its own whose epochs nobody counted;
    ``is_unpriced``: no run has ended on this hardware kind, and how costs compare is known from others or, if
    ``inherits_costs``, inherited. By batch size: ``looks`` counts its ended trials,
    ``failures`` those of them that would never have converged, as far as can be seen. ``too_large_from``: the smallest
    batch size that ever ran out of memory here.
    """

    beliefs: Beliefs
    standing: Standing
    default_batch_size: int
    running: tuple[int, ...]
    recurrences: int
    aborts: int
    is_last: bool
    is_unproven: bool
    is_uncounted: bool
    is_unpriced: bool
    inherits_costs: bool
    looks: dict[int, int]
    failures: dict[int, float]
    too_large_from: int | None

    @property
    def trials(self) -> int:
        """The ended trials of the version, but at most as many as there were recurrences."""
        return min(self.recurrences, sum(self.looks.values()))


def choose(now: Situation) -> Choice:
    """The batch size whose next run is worth most: the incumbent, or another where that pays in the long run."""
    incumbent = now.standing.incumbent(now.beliefs)
    if incumbent is None:
        return _first(now)
    if now.is_unproven or now.is_unpriced:
        return _best_elsewhere(now)
    if now.aborts >= _ABORTS_BEFORE_INCUMBENT:
        return _chosen(
            incumbent, f"{now.aborts} trials of this recurrence have failed; {incumbent} is the best one known"
        )
    worth = {size: _value(now, size, incumbent) for size in _candidates(now, incumbent)}
    size = max(worth, key=lambda one: (worth[one].net, -one), default=incumbent)
    if size != incumbent and worth[size].net > _NOTHING:
        return _chosen(size, _why_another(now, size, incumbent, worth[size]))
    look = _neighbour(now, incumbent) or _default_again(now, incumbent)
    return look or _chosen(incumbent, _why_incumbent(now, incumbent, worth))


def confidence_in(now: Situation, best: int, *, runs: int, is_noise_known: bool) -> Confidence:
    """How sure it is that a batch size is the best one, which has come out of so many runs."""
    beliefs, incumbent = now.beliefs, now.standing.incumbent(now.beliefs)
    others = [size for size in now.standing.usable if size != best and beliefs.of(size).has_converged]
    savings = [
        1.0 - normal.exp(ratio - _ONE_IN_TWENTY * math.sqrt(variance))
        for ratio, variance in (beliefs.ratio(size, best) for size in others)
    ]
    pays = incumbent is not None and any(
        _value(now, size, incumbent).net > _NOTHING for size in _candidates(now, incumbent)
    )
    return Confidence(
        runs=runs,
        cost_noise=math.sqrt(beliefs.cost_noise) if is_noise_known else None,
        may_save=max(0.0, *savings) if savings else None,
        more_runs_pay=pays,
    )


def safest(now: Situation) -> int:
    """The batch size most likely to give a model: the incumbent, else the default, else what looks best.

    Where none has converged and some ran out of memory, the largest one that is smaller than all of these.
    Where a batch size has failed in this recurrence that used to converge, trainings may have changed, and what lies
    near it fails, too: then the default, which its user has chosen, goes before other batch sizes that cost less.
    """
    if now.standing.lapsed and now.standing.is_reliable(now.default_batch_size, now.beliefs):
        return now.default_batch_size
    incumbent = now.standing.safest(now.beliefs)
    if incumbent is not None:
        return incumbent
    fitting = {size for size in now.standing.fresh if now.too_large_from is None or size < now.too_large_from}
    return max(fitting) if fitting and now.too_large_from is not None else _first(now).batch_size


def _first(now: Situation) -> Choice:
    """Nothing that can run has converged: the default, or if that has failed what promises most near what was tried."""
    default, beliefs = now.default_batch_size, now.beliefs
    why = "nothing has converged yet"
    if not now.is_unproven and any(beliefs.of(size).has_converged for size in beliefs.sizes):
        why = "no batch size that can run now has converged lately"
    if default in now.standing.fresh and not now.failures.get(default, 0.0):
        return _beside_default(now) or _chosen(default, f"{why}; {default} is the default")
    near = _near(now, now.standing.fresh or now.standing.offered)

    def doubt(size: int) -> float:
        belief = beliefs.of(size)
        return belief.cost + _CAUTION * belief.fails + _DISTRUST * now.failures.get(size, 0.0)

    size = min(near, key=lambda one: (doubt(one), one))
    return _chosen(size, f"{why}; {size} is the most promising one left near the default")


def _best_elsewhere(now: Situation) -> Choice:
    """Nothing has run here: what was best elsewhere. Where that has failed in a new version, the default first."""
    size, default = safest(now), now.default_batch_size
    if now.is_unproven and now.is_uncounted:
        return _chosen(size, f"no run has reported its epochs yet; by what whole runs cost {size} is best")
    if now.is_unproven and now.aborts and default in now.standing.fresh:
        return _chosen(default, f"no run of this version has converged yet; {default} is the default")
    if now.is_unproven:
        return _chosen(size, f"no run of this version has converged yet; by inherited knowledge {size} is best")
    if now.inherits_costs:
        return _chosen(size, f"no run of this version has ended here yet; by inherited knowledge {size} is best")
    return _chosen(size, f"nothing has run on this hardware kind yet; {size} is the best one on other kinds")


def _beside_default(now: Situation) -> Choice | None:
    """While the default is under way, recurrences that overlap run what is near it: the nearest first, each once.

    Only with their first attempt, and only if others are left: a recurrence that has lost a trial gets the safest one.
    """
    default, between = now.default_batch_size, now.beliefs.octaves_between
    if default not in now.running or now.aborts or now.is_last:
        return None
    unseen = [size for size in now.standing.fresh if size not in now.running and not now.looks.get(size, 0)]
    near = [size for size in unseen if between(size, default) <= _SPREAD]
    size = min((size for size in near if size != default), key=lambda one: (between(one, default), -one), default=None)
    if size is None:
        return None
    return _chosen(size, f"nothing has converged yet, and {default}, the default, is still running; {size} is near it")


def _candidates(now: Situation, incumbent: int) -> list[int]:
    """Those near what was tried, and those above what has converged of which epochs were probed, however far."""
    beliefs, fresh = now.beliefs, now.standing.fresh
    least = min((size for size in now.standing.usable if beliefs.of(size).has_converged), default=incumbent)
    far = {size for size in fresh if size > least and beliefs.is_probed(size)}
    return sorted({*_near(now, fresh), *far} - {incumbent})


def _near(now: Situation, among: frozenset[int]) -> list[int]:
    """The batch sizes of a set within an octave of a tried one, or next to one; all if there are none."""
    beliefs, usable = now.beliefs, sorted(now.standing.usable)
    tried = {size for size in usable if beliefs.of(size).is_tried or size == now.default_batch_size}
    beside = {other for size in tried for other in beliefs.neighbours(size, usable)}
    near = [
        size
        for size in sorted(among)
        if size in tried or size in beside or any(beliefs.octaves_between(size, one) <= _OCTAVE for one in tried)
    ]
    return near or sorted(among)


def _value(now: Situation, size: int, incumbent: int) -> Value:
    found = value_of(now.beliefs, size, incumbent, recurrences=now.recurrences, together=TOGETHER)
    return replace(found, price=found.price + found.runs * _risk_of_a_jump(now, size))


def _risk_of_a_jump(now: Situation, size: int) -> float:
    """What it costs on the mean, in runs, that a batch size may not converge which only a probe recommends."""
    if not now.beliefs.is_probed(size) or now.beliefs.of(size).is_tried:
        return 0.0
    between, sizes = now.beliefs.octaves_between, now.beliefs.sizes
    distances = [between(size, one) for one in sizes if now.beliefs.of(one).has_converged]
    return _JUMP_RISK * max(0.0, min(distances, default=0.0) - 1.0)


def _neighbour(now: Situation, incumbent: int) -> Choice | None:
    """Both neighbours of the incumbent are tried once; those that are hardly more expensive again, ever more rarely.

    While few batch sizes have converged, so are those that only may be cheaper: one unlucky look, or an epoch cost that
    is high where few epochs are needed, must not keep a job where it began. Not in a recurrence that has lost a trial
    already.
    """
    if now.aborts:
        return None
    beside = now.beliefs.neighbours(incumbent, sorted(now.standing.fresh | {incumbent}))
    few_have_converged = sum(now.beliefs.of(size).has_converged for size in now.beliefs.sizes) <= _FEW
    for size in beside:
        if not now.beliefs.of(size).is_tried:
            if _is_known_to_cost_more(now, size, incumbent):
                continue
            return _chosen(size, f"{size} is near {incumbent}, the best one known, and was never tried")
    for size in beside:
        if size in now.running or not now.beliefs.of(size).is_tried:
            continue
        more, looks = _more(now, size, incumbent), now.looks.get(size, 0)
        after = f"after {looks} trial{'' if looks == 1 else 's'}"
        reason = f"another look at {size}, which seems {_compared(more)} than {incumbent} {after}"
        if (
            now.beliefs.cost_at_best(size, incumbent) < math.log1p(_LOOK_COST)
            and max(more, _LEAST_MORE) * looks**_LOOK_GROWTH <= _LOOK_PACE * now.trials
        ):
            return Choice(batch_size=size, reason=reason, mark=SECOND_LOOK)
        chance = now.beliefs.chance(size, incumbent) if few_have_converged else 0.0
        if chance > _CHANCE and max(more, _LEAST_MORE) * looks**_CHANCE_GROWTH <= _CHANCE_PACE * now.trials:
            saves = f"probability that it saves {percent(now.beliefs.min_saving)} or more: {percent(chance)}"
            return Choice(batch_size=size, reason=f"{reason} ({saves})", mark=SECOND_LOOK)
    return None


def _is_known_to_cost_more(now: Situation, size: int, incumbent: int) -> bool:
    """Whether a probe has shown that not even some luck would make a batch size worth a look.

    Of one whose epochs cost less than the incumbent's it has not: that it needs more of them is a guess.
    """
    beliefs = now.beliefs
    if not beliefs.is_probed(size) or beliefs.of(size).epoch_cost < beliefs.of(incumbent).epoch_cost:
        return False
    return beliefs.cost_at_best(size, incumbent) > math.log1p(_LOOK_COST)


def _default_again(now: Situation, incumbent: int) -> Choice | None:
    """The default, whose cost the user has known, runs again while it is not certain that the incumbent is no worse.

    What that costs is a small share of all. Not in a recurrence that has lost a trial already.
    """
    default, beliefs = now.default_batch_size, now.beliefs
    if now.aborts or default == incumbent or default in now.running or default not in now.standing.fresh:
        return None
    price = max(_more(now, default, incumbent), _LEAST_PRICE)
    risk = beliefs.risk(incumbent, default)
    if beliefs.learnt(default, incumbent, 1) < beliefs.learnt(incumbent, default, 1):
        return None  # the incumbent is what too little is known of
    if risk <= _RISK or price * now.looks.get(default, 0) > _RISK_PACE * now.trials:
        return None
    reason = f"{default}, the default, again: {incumbent}, the best one known, may be over 10% more expensive"
    return Choice(batch_size=default, reason=f"{reason} (probability {percent(risk)})", mark=SECOND_LOOK)


def _more(now: Situation, size: int, than: int) -> float:
    """By which share of its cost a batch size is expected to cost more than another."""
    ratio, _ = now.beliefs.ratio(size, than)
    return normal.exp(min(ratio, _MOST_EXPENSIVE)) - 1.0


def _compared(more: float) -> str:
    return f"{percent(-more)} cheaper" if more <= 0.0 else f"{percent(more)} more expensive"


def _why_another(now: Situation, size: int, incumbent: int, value: Value) -> str:
    looks = _compared(_more(now, size, incumbent))
    if now.beliefs.is_probed(size) and not now.beliefs.of(size).is_tried:
        less = 1.0 - normal.exp(now.beliefs.of(size).epoch_cost - now.beliefs.of(incumbent).epoch_cost)
        looks += f" (probed: {percent(abs(less))} {'less' if less >= 0.0 else 'more'} per epoch)"
    comes = horizon(now.recurrences)
    if value.runs == 1:
        return (
            f"{size} looks {looks} than {incumbent}, may save {_runs(value.gain)} over the next {comes} recurrences, "
            f"and costs {_runs(value.price)} more to try"
        )
    return (
        f"{size} looks {looks} than {incumbent}; {value.runs} trials of it may save {_runs(value.gain)} over the "
        f"next {comes} recurrences, and cost {_runs(value.price)} more"
    )


def _why_incumbent(now: Situation, incumbent: int, worth: dict[int, Value]) -> str:
    stays = f"{incumbent} is the best one known (expected {joules(normal.exp(now.beliefs.of(incumbent).cost))}"
    known = [size for size in worth if now.beliefs.of(size).has_converged]
    cheapest = min(known, key=lambda size: now.beliefs.of(size).cost, default=incumbent)
    saving = -_more(now, cheapest, incumbent)
    if 0.0 < saving < now.beliefs.min_saving:
        stays += f"; {cheapest} looks {percent(saving)} cheaper, less than min_saving"
    if not worth:
        return f"{stays}), and there is no other to try"
    other = max(worth, key=lambda one: (worth[one].net, -one))
    value = worth[other]
    tried = f"trying {other}" if value.runs == 1 else f"{value.runs} trials of {other}"
    is_little = value.gain > value.price and value.gain >= _NOTHING
    saved = f"{_runs(value.gain)}{', too little' if is_little else ''}"
    return f"{stays}); {tried} would cost {_runs(value.price)} more and save {saved}"


def _chosen(size: int, reason: str) -> Choice:
    return Choice(batch_size=size, reason=reason)


def _runs(runs: float) -> str:
    if runs < _NOTHING:
        return "nothing"
    number = figure(runs, 2)
    return "a run" if number == "1" else f"{number} runs"
