"""The cost above which the policy stops a trial."""

import asyncio

from bso.policies.testing import RecurringJob


def test_before_anything_has_converged_the_cost_budget_is_the_bound_also_without_beta_knob() -> None:
    async def bounds() -> list[float | None]:
        job = RecurringJob(policy="greedy")
        await job.register(beta_knob=None, cost_budget=1e9)
        first, then = await job.recur(1), await job.begin(2)
        return [first[0][0].bound, then.bound]

    assert asyncio.run(bounds()) == [1e9, None]
