"""Round robin for 25 recurrences, then what was cheapest: how a policy looks that knows when it will be judged."""

from bso.simulator.world import World

ROUND_ROBIN = "round robin, then the best"
EXPLORES = 25


def round_robin(world: World, recurrences: int) -> tuple[list[int], list[int]]:
    """The batch size of each recurrence before the 30th, and what was taken for the best after each recurrence.

    Batch sizes take turns from the default on, larger ones first. It knows which ones do not fit, since trying them
    costs nothing in the simulator. The best is the one of least mean cost.
    """
    problem = world.problem
    start = problem.batch_sizes.index(problem.default_batch_size)
    turn = [
        size for size in problem.batch_sizes[start:] + problem.batch_sizes[:start] if size not in problem.infeasible
    ]
    costs: dict[int, list[float]] = {}
    sizes: list[int] = []
    known: list[int] = []
    for recurrence in range(1, recurrences + 1):
        size = turn[(recurrence - 1) % len(turn)] if recurrence <= EXPLORES else known[-1]
        of_size = costs.setdefault(size, [])
        of_size.append(_cost(world, size, len(of_size) + 1, recurrence))
        sizes.append(size)
        known.append(min(costs, key=lambda one: sum(costs[one]) / len(costs[one])))
    return sizes[:29], known


def _cost(world: World, size: int, run: int, recurrence: int) -> float:
    needed = world.epochs_to_target(size, run, recurrence)
    epochs = world.max_epochs(recurrence) if needed is None else needed
    return world.cost(world.price(size, recurrence), recurrence) * world.noisy_epochs(size, run, recurrence, epochs)
