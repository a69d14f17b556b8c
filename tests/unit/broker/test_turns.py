"""Turns: one thing at a time, of each login in turn."""

import asyncio

import pytest

from bso_broker.errors import NoRoom
from bso_broker.turns import Turns


class Asking:
    """Logins that want turns: ``had`` names those that have had one, in order."""

    def __init__(self, *, most_waiting: int = 9) -> None:
        self.turns = Turns(most_waiting=most_waiting)
        self.had: list[str] = []
        self.goes_on = asyncio.Event()

    async def ask(self, login: str, count: int = 1) -> list[asyncio.Task[None]]:
        """Ask for turns; they are taken, or waited for, when this returns."""
        asked = [asyncio.create_task(self._turn(login)) for _ in range(count)]
        await asyncio.sleep(0)  # noqa: TID251  lets them run until they wait
        return asked

    async def _turn(self, login: str) -> None:
        async with self.turns.of(login):
            self.had.append(login)
            await self.goes_on.wait()


async def test_one_who_asks_often_lets_others_in_between() -> None:
    logins = Asking()
    asked = [*await logins.ask("often", 5), *await logins.ask("once"), *await logins.ask("twice", 2)]
    logins.goes_on.set()
    await asyncio.gather(*asked)
    assert logins.had == ["often", "often", "once", "twice", "often", "twice", "often", "often"]


async def test_one_turn_is_had_at_a_time() -> None:
    logins = Asking()
    asked = [*await logins.ask("one"), *await logins.ask("other")]
    assert logins.had == ["one"]
    logins.goes_on.set()
    await asyncio.gather(*asked)
    assert logins.had == ["one", "other"]


async def test_of_each_login_only_so_many_may_wait() -> None:
    logins = Asking(most_waiting=2)
    asked = await logins.ask("one", 3)
    with pytest.raises(NoRoom):
        await logins.turns.of("one").__aenter__()
    asked += await logins.ask("other")
    logins.goes_on.set()
    await asyncio.gather(*asked)
    assert logins.had.count("one") == 3
    assert "other" in logins.had


async def test_a_turn_that_nobody_wants_any_more_is_the_next_ones() -> None:
    logins = Asking()
    first, second, third = [*await logins.ask("one"), *await logins.ask("two"), *await logins.ask("three")]
    second.cancel()
    logins.goes_on.set()
    await asyncio.gather(first, third)
    assert logins.had == ["one", "three"]


async def test_a_turn_that_comes_to_one_who_has_just_left_is_the_next_ones() -> None:
    logins = Asking()
    async with logins.turns.of("one"):
        second, third = [*await logins.ask("two"), *await logins.ask("three")]
    second.cancel()  # the turn has come to it, and it has not run
    logins.goes_on.set()
    await third
    assert logins.had == ["three"]
