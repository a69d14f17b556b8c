"""Zeus' own batch size server in one process, asked as its clients ask it; runs in Zeus' environment.

Standard input is a list of jobs: ``spec`` as clients send it, ``epochs`` to the target and ``epoch_s`` by batch size
(an energy of ``watts`` times that), and the ``lives`` of its trainings, one after the other: "train" until Zeus stops
it, "crash" after its first report, "hang" without an end. ``ZEUS_BSO_DATABASE_URL`` is the database, which is made.
"""

import asyncio
import json
import sys
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import create_async_engine
from zeus.optimizer.batch_size.server.config import settings
from zeus.optimizer.batch_size.server.database.schema import Base
from zeus.optimizer.batch_size.server.router import app


async def create_tables() -> None:
    """Create what its migrations would."""
    engine = create_async_engine(settings.database_url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


def train(client: TestClient, job: dict[str, Any], number: int, life: str) -> None:
    """One training with the batch size that Zeus chooses; no two cost the same.

    Zeus takes equal costs for exact ones, of infinite precision, which MySQL cannot store.
    """
    begun = client.get("/jobs/batch_size", params={"job_id": job["spec"]["job_id"]})
    begun.raise_for_status()
    trial = begun.json()
    if life == "hang":
        return
    size, target = str(trial["batch_size"]), job["spec"]["target_metric"]
    epochs, epoch_s = job["epochs"][size], job["epoch_s"][size] * (1.0 + 0.004 * (number * 5 % 13))
    for epoch in range(1, job["spec"]["max_epochs"] + 1):
        has_reached = epochs is not None and epoch >= epochs
        worse = 0.5 if job["spec"].get("higher_is_better_metric", True) else 2.0
        metric = target * (1.0 if has_reached else worse)
        totals = {"time": epoch * epoch_s, "energy": epoch * epoch_s * job["watts"], "metric": metric}
        reported = client.post("/report", json={**trial, **totals, "current_epoch": epoch})
        reported.raise_for_status()
        if reported.json()["stop_train"] or life == "crash":
            break
    client.patch("/trials", json=trial).raise_for_status()


if __name__ == "__main__":
    asyncio.run(create_tables())
    with TestClient(app) as zeus:
        for one in json.load(sys.stdin):
            zeus.post("/jobs", json=one["spec"]).raise_for_status()
            for count, kind in enumerate(one["lives"]):
                train(zeus, one, count, kind)
