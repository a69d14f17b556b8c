import pytest

from bso.domain.commands import EpochCostProbe
from bso.domain.replies import Problem
from bso.domain.trial import OUT_OF_MEMORY, Outcome
from bso_client import BsoError, InvalidSpec, Refused, TrainFailed
from bso_client.distributed.endings import Evaluated, Left, ending_of_all, probed_by_all
from bso_client.distributed.exchange import carried, raise_first
from bso_client.meter import Meter, PooledMeter
from bso_client.training.state import Consumption, Probed

NOTHING = Consumption()
GOES_ON = Evaluated(epoch=1.0, metric=0.1, consumed=NOTHING)
MEMORY = Left(outcome=Outcome.INFEASIBLE, reason=OUT_OF_MEMORY, consumed=NOTHING, is_error=True)
BROKEN = Left(outcome=Outcome.INTERRUPTED, reason="OSError: disk", consumed=NOTHING, is_error=True)
DONE = Left(outcome=Outcome.NOT_CONVERGED, reason="the training ended", consumed=NOTHING)


def test_nobody_leaves() -> None:
    assert ending_of_all([GOES_ON, GOES_ON]) is None


@pytest.mark.parametrize("said", [[MEMORY, MEMORY], [GOES_ON, MEMORY]], ids=["all", "one"])
def test_out_of_memory_on_any_rank_fails_the_batch_size_for_all(said: list[Evaluated | Left]) -> None:
    ending = ending_of_all(said)
    assert ending is not None
    assert (ending.outcome, ending.reason) == (Outcome.INFEASIBLE, OUT_OF_MEMORY)
    assert ending.is_failure
    assert not ending.is_broken


def test_a_rank_that_left_with_another_error_takes_part_in_nothing_more() -> None:
    ending = ending_of_all([GOES_ON, BROKEN])
    assert ending is not None
    assert (ending.outcome, ending.reason) == (Outcome.INTERRUPTED, "rank 1: OSError: disk")
    assert ending.is_broken
    both = ending_of_all([BROKEN, MEMORY])
    assert both is not None
    assert (both.outcome, both.is_failure, both.is_broken) == (Outcome.INFEASIBLE, False, True)


def test_what_all_say_alike_is_nobodys_in_particular() -> None:
    ending = ending_of_all([DONE, DONE])
    assert ending is not None
    assert (ending.reason, ending.is_failure, ending.is_broken) == ("the training ended", False, False)


REFUSED = Refused(Problem(type="forbidden", title="Not yours", detail="ask its owner"))
FAILED = TrainFailed(batch_size=8, trial_number=1, outcome=Outcome.INFEASIBLE, reason="memory", should_retry=True)


@pytest.mark.parametrize("error", [REFUSED, FAILED, InvalidSpec({"batch_sizes": "are wrong"}), KeyError("label")])
def test_an_error_arrives_with_its_type_its_words_and_what_it_holds(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        raise_first(["a value", carried(error)], rank=0)
    assert str(caught.value) == str(error)
    assert caught.value.__dict__ | {"__notes__": 0} == error.__dict__ | {"__notes__": 0}
    assert caught.value.__notes__ == ["raised on rank 1"]


def test_an_error_that_does_not_pickle_arrives_in_words() -> None:
    class Local(Exception):
        """Of a class that nobody else can find."""

    with pytest.raises(BsoError, match="Local: no such label"):
        raise_first([carried(Local("no such label"))], rank=1)


class Clock:
    """A clock, and a meter that measures 10 W."""

    def __init__(self) -> None:
        self.now, self.began = 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    def begin_window(self, key: str, /) -> None:
        self.began = self.now

    def end_window(self, key: str, /) -> "Clock":
        self.time, self.total_energy = self.now - self.began, 10.0 * (self.now - self.began)
        return self


def test_energies_add_up_and_time_is_that_of_the_slowest_rank() -> None:
    clock = Clock()
    meter = PooledMeter(Meter(clock, clock=clock), before=Consumption(time_s=100.0, energy_j=1000.0), size=2)
    meter.start()
    clock.now = 5.0
    meter.stop()
    assert meter.consumed == Consumption(time_s=105.0, energy_j=1100.0)  # two ranks, as far as one can know
    own = meter.own.consumed
    meter.pool([own, Consumption(time_s=7.0, energy_j=150.0)])
    assert meter.consumed == Consumption(time_s=107.0, energy_j=1200.0)
    meter.start()
    clock.now = 6.0
    assert meter.stop() == Consumption(time_s=108.0, energy_j=1240.0)  # the other goes on as it did: thrice this one


def test_energy_that_one_rank_could_not_measure_is_unknown() -> None:
    clock = Clock()
    meter = PooledMeter(Meter(clock, clock=clock), before=NOTHING, size=2)
    meter.pool([NOTHING, Consumption(time_s=1.0, energy_j=None)])
    assert meter.consumed == Consumption(time_s=1.0, energy_j=None)


def probe(batch_size: int, time_s: float, energy_j: float | None = 10.0, variance: float = 0.01) -> EpochCostProbe:
    return EpochCostProbe(batch_size=batch_size, time_s=time_s, energy_j=energy_j, variance=variance)


def test_what_all_ranks_have_probed_is_the_mean_of_theirs() -> None:
    first = Probed(probes=(probe(32, 4.0), probe(64, 2.0, variance=0.02)), time_s=1.0, energy_j=5.0)
    second = Probed(probes=(probe(64, 3.0, 20.0), probe(32, 4.0)), time_s=2.0, energy_j=6.0)
    together = probed_by_all([first, second])
    assert together == Probed(
        probes=(probe(32, 4.0, variance=0.01 + 0.2**2), probe(64, 2.5, 15.0, variance=0.02 + 0.2**2)),
        time_s=2.0,
        energy_j=11.0,
    ), "they probe at the same time, each takes energy, and what they exchange is in no probe"


def test_what_one_rank_has_not_probed_yet_is_left_out() -> None:
    ahead = Probed(probes=(probe(32, 4.0), probe(64, 2.0)), time_s=1.0)
    assert [each.batch_size for each in probed_by_all([ahead, Probed(probes=(probe(32, 4.0),))]).probes] == [32]
    assert probed_by_all([ahead, Probed()]).probes == ()


def test_what_does_not_fit_on_one_rank_is_excluded_on_all() -> None:
    fits = Probed(probes=(probe(32, 4.0), probe(64, 2.0)))
    together = probed_by_all([fits, Probed(probes=(probe(32, 4.0),), out_of_memory=(64,))])
    assert ([each.batch_size for each in together.probes], together.out_of_memory) == ([32], (64,))


def test_where_one_rank_cannot_probe_any_more_none_does() -> None:
    assert probed_by_all([Probed(time_s=1.0), Probed(time_s=1.0, is_broken=True)]).is_broken
    assert not probed_by_all([Probed(time_s=1.0), Probed(time_s=1.0)]).is_broken
    assert Probed(is_broken=True).plus(Probed()).is_broken


def test_an_energy_that_one_rank_has_not_measured_is_not_known() -> None:
    known = Probed(probes=(probe(32, 4.0),), energy_j=5.0)
    unknown = Probed(probes=(probe(32, 4.0, energy_j=None),), energy_j=None)
    together = probed_by_all([known, unknown])
    assert (together.energy_j, together.probes[0].energy_j) == (None, None)
