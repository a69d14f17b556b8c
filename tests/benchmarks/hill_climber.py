"""A plain hill climber over batch sizes: what policies are to be compared with where costs are smooth."""

from itertools import accumulate

from bso.simulator import baselines
from bso.simulator.world import World

RUNS = 2
"""Recurrences with a batch size before it is judged by their mean cost."""


class HillClimber:
    """Runs the default, then its larger neighbour, and goes on that way for as long as the mean cost falls.

    If the first step brings nothing it tries the smaller neighbours; where neither side is cheaper it stays for good.
    No run is stopped early. One that fails costs max_epochs, and the batch size it set out from gives the model: the
    default must converge.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs: dict[int, int] = {}
        self._costs: list[float] = []
        self.batch_size = world.problem.default_batch_size

    def regrets(self, recurrences: int) -> list[float]:
        """Whole trainings wasted up to each recurrence, as ``Run.regrets``."""
        self._climb(recurrences)
        while len(self._costs) < recurrences:
            self._recur(self.batch_size)
        oracle = baselines.oracle(self._world, [1.0] * recurrences)
        paid = zip(self._costs[:recurrences], oracle.costs, oracle.mean_costs, strict=True)
        return list(accumulate((cost - best) / mean for cost, best, mean in paid))

    def _climb(self, recurrences: int) -> None:
        sizes = self._world.problem.batch_sizes
        least, start = self._mean_cost(self.batch_size), self.batch_size
        for way in (sizes, sizes[::-1]):
            for size in way[way.index(start) + 1 :]:
                if len(self._costs) >= recurrences or (cost := self._mean_cost(size)) >= least:
                    break
                least, self.batch_size = cost, size
            if self.batch_size != start:
                return  # the neighbour on the other side is where it came from

    def _mean_cost(self, size: int) -> float:
        for _ in range(RUNS):
            self._recur(size)
        return sum(self._costs[-RUNS:]) / RUNS

    def _recur(self, size: int) -> None:
        """Train until there is a model, and note what that costs [J]."""
        paid, needed, recurrence = 0.0, None, len(self._costs) + 1
        while needed is None:
            run = self._runs[size] = self._runs.get(size, 0) + 1
            needed = self._world.epochs_to_target(size, run, recurrence)
            epochs = self._world.max_epochs(recurrence) if needed is None else needed
            paid += epochs * self._world.cost(self._world.price(size, recurrence), recurrence)
            size = self.batch_size
        self._costs.append(paid)
