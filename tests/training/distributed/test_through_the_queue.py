"""Ranks that train, and die, over RabbitMQ and a worker on MariaDB or MySQL."""

import asyncio
from pathlib import Path

from bso.domain.trial import Outcome
from bso_migrations import upgrade
from tests.integration.workers.fixtures import StartWorker, start_worker
from tests.training.distributed.torchrun import launch

__all__ = ["start_worker"]


def test_rank_0_is_killed_and_an_elastic_restart_resumes_its_trial(
    amqp_url: str, mysql_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    asyncio.run(upgrade(mysql_url))
    start_worker().ready()
    done = launch("dying", tmp_path, 0, "checkpoint", max_restarts=1, environ={"BSO_URL": amqp_url})
    assert done.codes == (0,), done.printed

    [trial] = done.trials(url=mysql_url)
    assert (trial.outcome, trial.epoch, trial.reports) == (Outcome.CONVERGED, 4.0, 4)
    assert done.same("number") == [1, 1]
    assert done.same("epoch") == [0.0, 2.0]
