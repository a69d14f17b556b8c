"""Delivers what ended processes have left in the journal, in its order, under the command_ids of its first sending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from bso.domain.commands import BeginTrial, Request
from bso.domain.errors import BsoError, Misconfigured, Retryable
from bso.domain.replies import KEPT, Problem, TrialBegun
from bso.private_files import FILE_MODE
from bso_client.delivery.journal import Kept
from bso_client.delivery.left_behind import LeftBehind, take_over
from bso_client.delivery.obstacle import declined
from bso_client.training.state import addressed
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_PAUSE_S = 0.1
_LOCK_PATIENCE_S = 2.0  # for another process that delivers, which may be frozen
_UNREGISTERED = "its trial was not registered: "


@dataclass(slots=True, kw_only=True)
class Flushed:
    """How many commands were delivered, or set aside.

    ``obstacle`` says why it has stopped before its end; None: it has not.
    """

    delivered: int = 0
    set_aside: int = 0
    obstacle: BsoError | None = None

    def has_set_aside(self) -> None:
        """Count a command that was set aside."""
        self.set_aside += 1


async def flush(
    folder: Path, transport: Transport, *, timeout_s: float, progress: Callable[[], None] = lambda: None
) -> Flushed:
    """Deliver what ended processes have left in a folder of the journal.

    Two processes do it one after the other. Where one takes long, or is frozen, the other delivers the files that it
    does not hold.

    It stops where a command has no answer within ``timeout_s``, or the login is refused: what is left stays, in its
    order. A command that the optimizer or the transport refuses is set aside, with the reason; with a beginning, all
    that its training sent; so is what cannot be read. Raises OSError.
    """
    flushed = Flushed()
    lock = FileLock(folder / "flush.lock", mode=FILE_MODE)
    await _acquire(lock, patience_s=min(_LOCK_PATIENCE_S, timeout_s / 2))
    try:
        for left in take_over(folder, on_unreadable=flushed.has_set_aside):
            await _deliver(left, transport, flushed, timeout_s, progress)
            if flushed.obstacle is not None:
                break
    finally:
        lock.release()
    return flushed


async def _acquire(lock: FileLock, *, patience_s: float) -> None:
    """Take the lock, or give notice that another process has it for longer than that."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if loop.time() >= deadline:
                logger.warning(
                    "another process holds %s and delivers slowly, or is frozen (`fuser` names it): only the reports "
                    "that it has taken over wait for it",
                    lock.lock_file,
                    extra={"action": "journal_in_use"},
                )
                return
            await asyncio.sleep(_PAUSE_S)
        else:
            return


async def _deliver(
    left: LeftBehind, transport: Transport, flushed: Flushed, timeout_s: float, progress: Callable[[], None]
) -> None:
    refused: dict[str, str] = {}
    for kept in left.letters:
        reason = refused.get(kept.training)
        request = None if reason else _addressed(kept, left)
        if request is None:
            left.set_aside(kept, reason or f"{_UNREGISTERED}its number is unknown")
            flushed.has_set_aside()
            continue
        try:
            reason = await _sent(kept, request, left, transport, timeout_s)
        except (Retryable, Misconfigured) as error:
            flushed.obstacle = error
            return
        except BsoError as error:
            reason = str(error)
        except OSError:  # the disk's
            raise
        except Exception as error:  # a bug in one command must not keep the others
            logger.exception("an earlier report was given up", extra={"action": "report_failed"})
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            left.delivered(kept)
            flushed.delivered += 1
        else:
            left.set_aside(kept, reason)
            flushed.has_set_aside()
            if isinstance(request.command, BeginTrial):
                refused[kept.training] = f"{_UNREGISTERED}{reason}"
        progress()


async def _sent(kept: Kept, request: Request, left: LeftBehind, transport: Transport, timeout_s: float) -> str | None:
    """Why the optimizer refuses the command; None: it has taken it. Raises BsoError."""
    reply = await transport.call(request, timeout_s=timeout_s)
    if isinstance(reply, TrialBegun):
        left.identified(kept.training, reply.trial_number, reply.trial_id)
    if not isinstance(reply, Problem) or reply.type == KEPT:
        return None
    if reply.is_retryable:
        raise declined(reply)
    return f"{reply.type}: {reply.title}: {reply.detail}"


def _addressed(kept: Kept, left: LeftBehind) -> Request | None:
    command = addressed(kept.request.command, left.identities.get(kept.training))
    return None if command is None else replace(kept.request, command=command)
