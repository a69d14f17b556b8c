"""Addresses with passwords in them: how they are read, how they are shown, and that no output holds a password.

An address that could be read in two ways is refused, and none of it is shown: a part that was taken for the host may
belong to the password. ``without_passwords`` is the net below that, for the words of drivers and libraries: whatever a
process of bso prints goes through it (bso.guarded_stream), and loses every password that the process has read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from bso.domain.errors import Misconfigured
from bso.domain.foreign_text import shown
from bso.private_files import rights_of_others

FILE_SUFFIX = "_FILE"
HIDDEN = "***"
_SHORTEST = 4  # a shorter password is also part of words that are none: only addresses are shown without it
_SERVER = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+]*)://"
    r"(?:(?P<user>[^:@/?#\s]*)(?P<password>:[^@/?#\s]*)?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[\w.~%-]*)(?P<port>:[0-9]*)?"
    r"(?P<path>/[^@?#\s]*)?(?:\?[^@#\s]*)?",
    re.IGNORECASE,
)
_BEGINNING = re.compile(r"[a-z][a-z0-9+]*://", re.IGNORECASE)
_NO_PORT = re.compile(_BEGINNING.pattern + r"[\w.~%-]+:[^/?#]*[^/?#0-9]", re.IGNORECASE)
_FILE_ADDRESS = re.compile(r"sqlite(\+\w+)?:///")
_IN_A_QUERY = re.compile(r"[?&;][^=&;]*(?:pass|pwd|secret|token)[^=&;]*=([^&;#]*)", re.IGNORECASE)

_SUB_DELIMS = "!$&'()*+,;="
_IN_JSON = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?')
_NAME = re.compile(r'"[a-z][a-z_]*"')
_ID = re.compile(r"[0-9a-fTZ:.+-]{16,}")
"""What a program has made up: a UUID, a key, a point in time."""

_LOGIN = re.compile(r"(?<=://)([^:@/?#\s]*):[^@/?#\s]*@")

_files: dict[str, Path] = {}
"""The files of the settings that a process has read from one, by what stood there."""
_known: set[str] = set()
_any_known = re.compile(r"(?!)")  # matches nothing


def problem_of(address: str) -> str | None:
    """Why an address is refused before anything tries to understand it, and what to do; None: it is not."""
    if _FILE_ADDRESS.match(address):
        return None
    if not _SERVER.fullmatch(address):
        if "@" not in address and not _BEGINNING.match(address):
            return "two slashes follow the scheme and its colon, as in amqps://host"
        if "@" not in address and _NO_PORT.match(address):
            return "the port is no number: expected host:5672, or user:password@host"
        return (
            "it can be read in more than one way: percent-encode all characters of user name and password but letters, "
            "digits and -._~ (`@` is %40, `/` is %2F), and name one host"
        )
    if _IN_A_QUERY.search(address):
        return "a password stands among its options: it belongs before the host, as in user:password@host"
    return None


def shown_address(address: str) -> str:
    """An address for people: no password, no options, and nothing of one that could be read in two ways."""
    if _FILE_ADDRESS.match(address):
        return address
    found = _SERVER.fullmatch(address)
    if found is None:
        scheme = re.match(r"[a-z][a-z0-9+]*(?=://)", address, re.IGNORECASE)
        return f"{scheme[0] if scheme else HIDDEN}://{HIDDEN}"
    login = "" if found["user"] is None else found["user"] + (f":{HIDDEN}" if found["password"] else "") + "@"
    return f"{found['scheme']}://{login}{found['host']}{found['port'] or ''}{found['path'] or ''}"


def setting(environ: Mapping[str, str], name: str, *, is_private: bool = False) -> str | None:
    """A variable, or the content of the file that NAME_FILE names; its passwords are hidden from then on.

    None: neither is set. Raises Misconfigured for a file that cannot be read, where both are set, and for a file that
    others than its owner may read although it ``is_private``; the group of a file of root's may.
    """
    text, path = environ.get(name), environ.get(f"{name}{FILE_SUFFIX}")
    if text and path:
        raise Misconfigured(f"set {name} or {name}{FILE_SUFFIX}, not both")
    if path:
        try:
            rights = _rights_of_others(Path(path)) if is_private and os.name == "posix" else None
            text = _read(Path(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{name}{FILE_SUFFIX} names {path}, which cannot be read: {error}") from error
        if rights is not None:
            raise Misconfigured(
                f"{name}{FILE_SUFFIX} names {path}, which others may read (its mode is {rights}): `chmod 600` it, or "
                "mount it with that mode (defaultMode: 0400 of a secret in Kubernetes)"
            )
        _files[text] = Path(path).absolute()
    text = (text or "").strip()
    hide_passwords_of(text)
    return text or None


def renewed(address: str) -> str:
    """An address with the password that now stands in the file from which ``setting`` has read it.

    It stays as it is without such a file, while that cannot be read, or if anything but the password has changed there.
    """
    if (path := _files.get(address)) is None:
        return address
    try:
        text = _read(path)
    except (OSError, UnicodeDecodeError):  # it is being replaced, perhaps: the next connection looks again
        return address
    hide_passwords_of(text)
    is_the_same = _LOGIN.sub(r"\1@", text) == _LOGIN.sub(r"\1@", address)
    return text if is_the_same and problem_of(text) is None else address


def handed_on(environ: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    """The environment for another process, in which ``setting`` finds this text, in its file if it came from one."""
    path = environ.get(f"{name}{FILE_SUFFIX}")
    if path and _files.get(text) == Path(path).absolute():
        return dict(environ)
    return {variable: value for variable, value in environ.items() if variable != f"{name}{FILE_SUFFIX}"} | {name: text}


def _rights_of_others(path: Path) -> str | None:
    found, rights = path.stat(), rights_of_others(path)
    is_mounted = found.st_uid == 0 != os.getuid() and rights in ("440", "640")  # by root, for the group of a container
    return None if is_mounted else rights


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def has_password(text: str) -> bool:
    """Whether a text is an address with a password in it, as far as anybody could mean it so."""
    return any(_passwords_in(text))


def hide_passwords_of(*addresses: str) -> None:
    """Let ``without_passwords`` hide the passwords of these addresses; texts that are no addresses have none."""
    global _any_known  # noqa: PLW0603  what a process has read is the process' own
    found = {form for address in addresses for password in _passwords_in(address) for form in _forms(password)}
    if found <= _known:
        return
    _known.update(found)
    longest_first = sorted(_known, key=len, reverse=True)
    _any_known = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)


def without_passwords(text: str) -> str:
    """A text in which ``***`` stands for each password that this process has read.

    JSON stays JSON with its numbers, ids and names of fields, whatever a password looks like. ``Data`` stays as it is.
    """
    if isinstance(text, Data) or not _any_known.search(text):
        return text
    return _IN_JSON.sub(_hidden_in_json, text) if _is_json(text) else _any_known.sub(HIDDEN, text)


def value_without_passwords(value: str) -> str:
    """The same for one value of JSON or CSV; an id or a point in time stays, unless it is a password as a whole."""
    is_an_id = _ID.fullmatch(value) and not _any_known.fullmatch(value)
    return value if is_an_id else _any_known.sub(HIDDEN, value)


class Data(str):
    """What a program reads, none of which is a password, whatever it looks like."""

    __slots__ = ()


def _is_json(text: str) -> bool:
    """Whether a text is a whole object or list."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _hidden_in_json(found: re.Match[str]) -> str:
    """A string of JSON, or a key and its colon."""
    written, colon = found[1], found[2] or ""
    if colon and _NAME.fullmatch(written):
        return found[0]
    text = json.loads(written)
    hidden = value_without_passwords(text)
    return found[0] if hidden == text else json.dumps(hidden) + colon


def _passwords_in(address: str) -> Iterator[str]:
    """What may be a password in an address, in whatever way it is read: too many rather than too few."""
    scheme, has_scheme, rest = address.strip().partition("://")
    if not has_scheme or ":" in scheme:
        scheme, has_scheme, rest = "", "", address.strip()
    if scheme.partition("+")[0] == "sqlite":
        return
    login, _, _ = rest.rpartition("@")
    user, _, password = login.partition(":")
    if has_scheme or password:
        yield from _IN_A_QUERY.findall(rest)
    candidates = [password]
    if not has_scheme:  # one slash for two is a scheme, too: the user may begin after any colon
        candidates += [password.split(":", colons)[-1] for colons in range(1, password.count(":") + 1)]
    elif not _SERVER.fullmatch(address.strip()):
        # A parser may have quoted any part of it: of what comes after the user, or where a port is expected.
        candidates += re.split(r"[@/?#:\s]", password or rest.partition(":")[2])
    yield from (each for each in candidates if each and unquote(each) != unquote(user))


def _forms(password: str) -> Iterator[str]:
    """How a password may be written: as it is, percent-encoded in several ways, quoted by Python, and all that by JSON.

    Libraries differ in which signs they encode: RFC 3986 leaves some, and yarl leaves those.
    """
    for plain in {password, unquote(password), unquote_plus(password)}:
        encoded = (quote(plain), quote(plain, safe=""), quote_plus(plain), quote(plain, safe=_SUB_DELIMS))
        quoted = (repr(plain)[1:-1], ascii(plain)[1:-1], repr(plain.encode(errors="replace"))[2:-1], shown(plain))
        for form in (plain, *encoded, *quoted):
            yield from (each for each in (form, json.dumps(form)[1:-1]) if len(form) >= _SHORTEST)
