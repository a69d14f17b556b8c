"""Passwords: wherever they stand in an address, they are in no error and in no output."""

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import URL as SqlUrl
from yarl import URL as YarlUrl

from bso.credentials import (
    Data,
    has_password,
    hide_passwords_of,
    renewed,
    setting,
    shown_address,
    without_passwords,
)
from bso.domain.errors import BsoError, Misconfigured
from bso.domain.foreign_text import shown
from bso.storage import open_store
from bso.storage.urls import database_url
from bso_broker.connection import BrokerAddress, connect
from bso_cli.settings import places
from bso_client.settings import checked_url, read_settings
from bso_workers.settings import read_settings as read_worker_settings

# Each with the pieces that a parser may cut out of it.
PASSWORDS = {
    "plain": ("Zq9-winter", ["Zq9-winter"]),
    "at": ("Zq9win@ter7Kp", ["Zq9win", "ter7Kp"]),
    "slash": ("Zq9win/ter7Kp", ["Zq9win", "ter7Kp"]),
    "hash": ("Zq9win#ter7Kp", ["Zq9win", "ter7Kp"]),
    "colon": ("Zq9win:ter7Kp", ["Zq9win", "ter7Kp"]),
    "question": ("Zq9win?ter7Kp", ["Zq9win", "ter7Kp"]),
    "bracket": ("Zq9win[ter7Kp", ["Zq9win", "ter7Kp"]),
    "space": ("Zq9win ter7Kp", ["Zq9win", "ter7Kp"]),
    "encoded": ("Zq9win%40ter7Kp", ["Zq9win", "ter7Kp"]),
    "only_signs_between": ("Zq9win@/:#?ter7Kp", ["Zq9win", "ter7Kp"]),
}
PLACES = (
    "{scheme}://user:{password}@host.invalid/bso",
    "{scheme}://user:{password}@host.invalid:1234/bso?heartbeat=30",
    "{scheme}://user:{password}@host.invalid:port/bso",
    "{scheme}://user:{password}@[::1/bso",
    "{scheme}://user:{password}@one.invalid,two.invalid/bso",
    "{scheme}://:{password}@host.invalid/bso",
    "{scheme}://host.invalid:{password}/bso",
    "{scheme}://user@host.invalid/bso?password={password}",
    "{scheme}://user@host.invalid/bso?PassWord={password}&x=1",
    "{scheme}://user@host.invalid/bso?db_passwd={password}",
    "{scheme}:/user:{password}@host.invalid/bso",
    "{scheme}//user:{password}@host.invalid/bso",
    "user:{password}@host.invalid/bso",
    "http://user:{password}@host.invalid/bso",
    "{password}",
    "  {scheme}://user:{password}@host.invalid/bso\n",
)
SCHEMES = ("mysql", "postgresql", "mariadb+asyncmy", "amqp", "amqps", "sqlite")


def _everywhere(address: str) -> list[Callable[[], object]]:
    """All that reads addresses."""
    return [
        lambda: database_url(address),
        lambda: open_store(address),
        lambda: BrokerAddress(url=address),
        lambda: read_settings({"BSO_URL": address}),
        lambda: read_settings({}, url=address),
        lambda: places({"BSO_DATABASE_URL": address, "BSO_URL": address}),
        lambda: places({}, database_url=address),
        lambda: read_worker_settings({"BSO_DATABASE_URL": address, "BSO_AMQP_URL": address, "BSO_BATCH_LIMIT": "no"}),
        lambda: read_worker_settings({"BSO_DATABASE_URL": address, "BSO_URL": address}),
    ]


CASES = [(place, name) for place in PLACES for name in PASSWORDS]
CASES.remove(("{scheme}://host.invalid:{password}/bso", "at"))  # an address like any other, with a host "ter7Kp"


@pytest.mark.parametrize(("place", "name"), CASES)
def test_neither_an_error_nor_a_repr_holds_a_password_wherever_it_stands(place: str, name: str) -> None:
    password, pieces = PASSWORDS[name]
    for scheme in SCHEMES:
        for read in _everywhere(place.format(scheme=scheme, password=password)):
            try:
                words = repr(read())
            except Misconfigured as error:
                words = "".join(traceback.format_exception(error))
            assert not any(piece in words for piece in pieces), words


@pytest.mark.parametrize(("place", "name"), CASES)
def test_an_address_is_shown_without_a_password_wherever_it_stands(place: str, name: str) -> None:
    password, pieces = PASSWORDS[name]
    for scheme in SCHEMES[:-1]:
        words = shown_address(place.format(scheme=scheme, password=password))
        assert not any(piece in words for piece in pieces), words


def test_what_can_be_read_in_one_way_is_shown_but_for_password_and_options() -> None:
    assert shown_address("mysql://me:Zq9-winter@db:3306/bso?tls=verify") == "mysql://me:***@db:3306/bso"
    assert shown_address("amqp://me@[::1]/team%2Fa") == "amqp://me@[::1]/team%2Fa"
    assert shown_address("sqlite:////home/me/a@b:c#.sqlite") == "sqlite:////home/me/a@b:c#.sqlite"
    assert shown_address("amqp://me:Zq9@winter@host/") == "amqp://***"
    assert shown_address("Zq9-winter") == "***://***"


@pytest.mark.parametrize("name", ["at", "slash", "hash", "question", "space", "only_signs_between"])
@pytest.mark.parametrize("scheme", ["mysql", "postgresql", "amqp"])
def test_an_address_that_can_be_read_in_two_ways_is_refused_with_what_to_do(scheme: str, name: str) -> None:
    address = f"{scheme}://me:{PASSWORDS[name][0]}@host/bso"
    read = checked_url if scheme == "amqp" else database_url
    with pytest.raises(Misconfigured, match="percent-encode all characters"):
        read(address)


@pytest.mark.parametrize("place", [place for place in PLACES if "user:{password}@" in place or "password=" in place])
@pytest.mark.parametrize("name", PASSWORDS)
def test_what_a_driver_says_loses_the_passwords_that_were_read(place: str, name: str) -> None:
    password = PASSWORDS[name][0].replace("Zq9", f"Z{PLACES.index(place)}q")  # no other test has made it known
    address = place.format(scheme="mysql", password=password)
    assert has_password(address)
    hide_passwords_of(address)
    quoted = password.replace("%", "%25").replace("@", "%40").replace("/", "%2f").replace(":", "%3A")
    for said in (f"cannot reach {address}", f"password={password!r}", f"in {password}.", f"as {quoted}"):
        assert password not in without_passwords(said)
        assert quoted not in without_passwords(said)


@pytest.mark.parametrize("before", ["user", "amqp:/user", "mysql://user"])
def test_a_password_with_what_follows_a_scheme_in_it_is_hidden(before: str) -> None:
    password = f"Zq{len(before)}win://ter7Kp"
    hide_passwords_of(f"{before}:{password}@host/bso")
    assert password not in without_passwords(f"with {password}")


def test_short_passwords_and_those_that_are_the_login_do_not_garble_what_is_printed() -> None:
    hide_passwords_of("amqp://guest:guest@host/", "mysql://bso:abc@host/bso", "BSO_QUOTAS", '{"*": {"jobs": 5}}')
    assert without_passwords("guest abc jobs 5") == "guest abc jobs 5"


def test_json_stays_json_and_keeps_its_numbers_names_ids_and_times() -> None:
    # Rare words: what a process has read as a password stays hidden in all that its other tests print.
    hide_passwords_of("amqp://me:8089@host/", "mysql://me:gorse@host/bso", "mysql://me:7193@host/bso")
    stays = {
        "gorse_size": 8089,
        "id": "97394366-8089-5cd3-af96-2a14f4362826",
        "key": "5fcf8089fb98e640",
        "at": "7193-11-26T19:01:53.653689Z",
        "sizes": [8089, 0.8089],
    }
    texts = {"said": 'the "8089" is\n amiss: gorse', "only": "8089", "ä/8089": 1}
    for written in (json.dumps(stays | texts), json.dumps(stays | texts, ensure_ascii=False) + "\n"):
        read = json.loads(without_passwords(written))
        assert read == stays | {"said": 'the "***" is\n amiss: ***', "only": "***", "ä/***": 1}
    assert without_passwords("{8089}") == "{***}"
    assert without_passwords(json.dumps(["8089"]) + "[") == '["***"]['
    assert without_passwords(Data("size,8089")) == "size,8089"


def test_in_json_a_password_is_hidden_however_it_is_quoted_there() -> None:
    hide_passwords_of("mysql://me:Zq9%5Cwin%22ter@host/bso")
    for said in ('Zq9\\win"ter', repr('Zq9\\win"ter'), "Zq9%5Cwin%22ter"):
        assert "Zq9" not in without_passwords(json.dumps({"reason": f"with {said}"}))


@pytest.mark.parametrize(
    "password", ["Zq9(win)[ter]", "Zq9'win\"ter", "Zq9wïnter", "Zq9win\u3164ter\u202e", "Zq9win\tter\n"]
)
def test_a_password_is_hidden_in_whatever_way_libraries_write_it(password: str) -> None:
    hide_passwords_of(f"mysql://me:{quote(password, safe='')}@host/bso")
    written = [repr(password), ascii(password), repr(password.encode()), shown(password), json.dumps(repr(password))]
    written.append(str(YarlUrl.build(scheme="amqp", host="host", user="me", password=password)))
    written.append(SqlUrl.create("mysql", "me", password, "host").render_as_string(hide_password=False))
    for text in written:
        assert "Zq9" not in without_passwords(f"with {text}"), text


def test_a_setting_comes_from_a_variable_or_from_the_file_that_another_one_names(tmp_path: Path) -> None:
    file = tmp_path / "amqp_url"
    file.write_text("amqp://me:Zq9-from-file@host/\n")
    assert setting({}, "BSO_URL") is None
    assert setting({"BSO_URL": ""}, "BSO_URL") is None
    assert setting({"BSO_URL": "amqp://host/\n"}, "BSO_URL") == "amqp://host/"
    assert setting({"BSO_URL_FILE": str(file)}, "BSO_URL") == "amqp://me:Zq9-from-file@host/"
    assert without_passwords("Zq9-from-file") == "***"
    assert read_settings({"BSO_URL_FILE": str(file)}).url == "amqp://me:Zq9-from-file@host/"
    with pytest.raises(Misconfigured, match="not both"):
        setting({"BSO_URL": "amqp://host/", "BSO_URL_FILE": str(file)}, "BSO_URL")
    with pytest.raises(Misconfigured, match=r"BSO_URL_FILE names .*nowhere"):
        setting({"BSO_URL_FILE": str(tmp_path / "nowhere")}, "BSO_URL")


def test_a_private_setting_comes_from_a_file_that_its_owner_alone_may_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("bso_Zq9-token\n")
    for mode in (0o644, 0o640, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(Misconfigured, match=f"mode is {mode:o}.*chmod 600"):
            setting({"BSO_TOKEN_FILE": str(file)}, "BSO_TOKEN", is_private=True)
    file.chmod(0o600)
    assert setting({"BSO_TOKEN_FILE": str(file)}, "BSO_TOKEN", is_private=True) == "bso_Zq9-token"


def test_an_address_from_a_file_is_renewed_with_the_password_that_stands_there_now(tmp_path: Path) -> None:
    file = tmp_path / "amqp_url"
    former, new = "amqp://me:Zq9-former@host/bso?heartbeat=9", "amqp://me:Zq9-renewed@host/bso?heartbeat=9"
    file.write_text(f"{former}\n")
    setting({"BSO_URL_FILE": str(file)}, "BSO_URL")
    assert renewed(former) == former
    file.write_text(f"{new}\n")
    assert renewed(former) == new
    assert without_passwords("Zq9-renewed") == "***"
    file.unlink()
    assert renewed(former) == former
    assert renewed("amqp://me:Zq9-elsewhere@host/bso") == "amqp://me:Zq9-elsewhere@host/bso"


@pytest.mark.parametrize(
    "now",
    [
        "",
        "nonsense",
        "amqp://somebody:Zq9-renewed@host/bso",
        "amqp://me:Zq9-renewed@another/bso",
        "amqp://me:Zq9-renewed@host/another",
        "amqps://me:Zq9-renewed@host/bso",
        "amqp://me:Zq9-ren@ewed@host/bso",
    ],
)
def test_an_address_stays_where_more_than_its_password_has_changed_in_the_file(tmp_path: Path, now: str) -> None:
    file = tmp_path / "amqp_url"
    former = "amqp://me:Zq9-former@host/bso"
    file.write_text(former)
    setting({"BSO_URL_FILE": str(file)}, "BSO_URL")
    file.write_text(now)
    assert renewed(former) == former


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
async def test_a_driver_that_cannot_connect_shows_no_password(scheme: str) -> None:
    store = open_store(f"{scheme}://me:Zq9-win%40ter@127.0.0.1:1/bso")
    with pytest.raises(BsoError) as raised:
        await store.ping()
    _assert_silent(raised.value, store, store.engine)
    await store.close()


async def test_a_broker_that_cannot_be_reached_shows_no_password() -> None:
    address = BrokerAddress(url="amqp://me:Zq9-win%40ter@127.0.0.1:1/bso")
    with pytest.raises(BsoError) as raised:
        await connect(address, name="test")
    _assert_silent(raised.value, address, str(address))


def _assert_silent(error: BaseException, *objects: Any) -> None:
    words = "".join(traceback.format_exception(error)) + "".join(map(repr, objects))
    assert not any(piece in words for piece in ("Zq9-win", "win%40ter", "win@ter")), words
