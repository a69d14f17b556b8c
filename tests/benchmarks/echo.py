"""``python -m tests.benchmarks.echo``: takes commands as a worker does and sends each back as its own answer.

The floor of every remote call: the same queue, the same batches, the same replies and acknowledgements, and nothing
between them.
"""

import asyncio
import json
import os
import signal
import sys

from bso_broker.messages import Reply
from bso_broker.ports import CommandSource, ReplySink
from bso_broker.rabbit import RabbitBroker
from tests.benchmarks.laboratory import run


async def echo(url: str) -> None:
    """Answer until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with RabbitBroker(url) as broker:
        consumer, replies = broker.command_consumer(), broker.reply_publisher()
        await consumer.start()
        await consumer.wait_until_ready()
        sys.stderr.write(json.dumps({"action": "started", "port": 0}) + "\n")
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(_answer_all(consumer, replies))
            await over.wait()
            answering.cancel()
        await consumer.close()


async def _answer_all(consumer: CommandSource, replies: ReplySink) -> None:
    while batch := await consumer.next_batch():
        await replies.reply_batch(
            [
                Reply(
                    reply_to=delivery.reply_to or "",
                    body=delivery.body,
                    correlation_id=delivery.correlation_id or "",
                    user_id=delivery.user_id,
                )
                for delivery in batch
            ]
        )
        await consumer.ack(batch)


if __name__ == "__main__":
    run(echo(os.environ["BSO_AMQP_URL"]))
