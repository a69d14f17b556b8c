"""How a process that ends, receives SIGTERM, or forks, treats its trainings."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import Future
from typing import Any, Protocol

from bso.domain.trial import Outcome
from bso_client.background import LoopThread
from bso_client.failures import ending_of

logger = logging.getLogger("bso")

CLOSE_TIMEOUT_S = 5.0
"""For the last words of a process; a scheduler that asked it to end kills it soon."""

_SIGNAL_TIMEOUT_S = 3.0
_MARGIN_S = 2.0  # for disconnecting; a file that is locked takes up to 1.5 s

_shells: list[Shell] = []
_closings: weakref.WeakSet[Closing] = weakref.WeakSet()
_inherited: list[Shell] = []  # in a forked child: kept for ever, so that nobody there closes what is the parent's
_forking = threading.local()
_is_installed = False


class Closeable(Protocol):
    """What has trainings that end with the process."""

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        ...

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End what runs, deliver what is left within the time, and disconnect."""
        ...


class Shell:
    """A synchronous optimizer without its public face, which may be gone already."""

    def __init__(self, session: Closeable, thread: LoopThread) -> None:
        self.session = session
        self.thread = thread
        self._closing: Future[Any] | None = None  # once nobody holds the optimizer any more

    def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End, deliver and disconnect within the time. Raises only what a signal does: the rest is kept then."""
        closing = self._closing
        if closing is None and not self.session.is_open:
            return
        try:
            if closing is None:
                ending = self.session.close(timeout_s=timeout_s, reason=reason, outcome=outcome)
                closing = self.thread.start_soon(ending)
            self.thread.settle(closing, timeout_s=timeout_s + _MARGIN_S)
        except KeyboardInterrupt:
            if closing is not None:
                self.thread.cancel(closing, timeout_s=_MARGIN_S)
            self.thread.stop(timeout_s=_MARGIN_S)
            raise
        except TimeoutError:
            logger.warning("no time was left to report the end of the training", extra={"action": "close_timeout"})
        except Exception:
            logger.exception("could not report the end of the training", extra={"action": "close_failed"})
        self.thread.stop(timeout_s=_MARGIN_S)

    def abandon(self) -> None:
        """Close without waiting: nobody holds the optimizer any more. The end of the process waits for it."""
        if self not in _shells or self._closing is not None:
            return
        if not self.session.is_open:
            _shells.remove(self)
            return
        closing = self.session.close(timeout_s=CLOSE_TIMEOUT_S, reason="the optimizer was given up")
        self._closing = self.thread.start_soon(closing)
        self._closing.add_done_callback(self._closed)

    def _closed(self, _: object) -> None:
        with contextlib.suppress(ValueError):  # the end of the process has it already
            _shells.remove(self)


class Closing(Protocol):
    """What has something to put right before the process ends."""

    def close_for_good(self) -> None:
        """Do it, quickly."""
        ...


def before_sigterm(closing: Closing) -> None:
    """Have it closed first when SIGTERM ends this process; a program that handles SIGTERM itself ends in its own way.

    A helper process cannot do it instead: with the first process of a container all others are killed.
    """
    _closings.add(closing)
    _install()
    _handle_sigterm()


def watch(shell: Shell) -> None:
    """From now on see to it that the end of the process ends the shell's training."""
    _shells.append(shell)
    _install()
    _handle_sigterm()


def _install() -> None:
    global _is_installed  # noqa: PLW0603  # a process has one end
    if not _is_installed:
        _is_installed = True
        # Before threads and executors are shut down: closing needs them. The plain atexit comes after that.
        register: Any = getattr(threading, "_register_atexit", atexit.register)
        register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_forget)


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    outcome, reason = (Outcome.INTERRUPTED, "the process ended") if error is None else ending_of(error)
    _close_all(timeout_s=CLOSE_TIMEOUT_S, reason=reason, outcome=outcome)


def _close_all(*, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
    _ignore_sigchld()
    with contextlib.suppress(IndexError):  # the last one may be closed meanwhile, in its own thread
        while _shells:
            shell = _shells.pop()
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends the wait for what the first one began
                shell.close(timeout_s=timeout_s, reason=reason, outcome=outcome)


def _ignore_sigchld() -> None:
    """Let no SIGCHLD handler raise between the last words: a DataLoader's does when its workers are ended."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    if callable(signal.getsignal(signal.SIGCHLD)):
        with contextlib.suppress(ValueError):  # not the main interpreter
            signal.signal(signal.SIGCHLD, lambda *_: None)


def _hold_sigterm() -> None:
    """Let no SIGTERM reach a child before the child has its own handler: the signal would be lost."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget() -> None:
    _inherited.extend(_shells)
    _shells.clear()
    _closings.clear()
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()


def _handle_sigterm() -> None:
    """Handle SIGTERM where nobody else does; a user's own handler ends the process in its own way, through our exit."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not the main interpreter
            signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(signal_number: int, _frame: object) -> None:
    for closing in list(_closings):
        try:
            closing.close_for_good()
        except Exception:
            logger.exception("something was left as it is", extra={"action": "close_failed"})
    _close_all(timeout_s=_SIGNAL_TIMEOUT_S, reason="SIGTERM")
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)
    if os.getpid() == 1:  # the first process of a container is not killed by its own signals
        os._exit(128 + signal_number)
