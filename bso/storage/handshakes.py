"""How a connection to a database server begins: encrypted or not, within a deadline; and what keeps it from beginning.

Both drivers send the login only after the server's certificate has been verified. What they say where that does not
happen is neither the same nor clear: a server without TLS, and one that asks for TLS or for a certificate of its
client, look like a lost connection or a wrong password.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from bso.domain.errors import BsoError
from bso.service.errors import StoreLoginRefused, StoreUnavailable
from bso.storage.faults import words_of
from bso.tls import TlsFailed, TlsOptions, tls_context, why_tls_failed

_OFFERS_TLS = 1 << 11  # CLIENT_SSL among the capabilities in the greeting of a MySQL server
_ACCESS_DENIED = (1045, 1698)  # also where a login has to come with TLS, or with a certificate
_INSECURE_TRANSPORT = 3159
_SERVER_GONE = (2006, 2013)

_Begin = Callable[..., Awaitable[Any]]


def begin_connections(engine: AsyncEngine, tls: TlsOptions, *, deadline_s: float) -> None:
    """Have each new connection of an engine encrypted as the options say, with the files as they are at that moment.

    So a certificate that was renewed is used by the next connection. Files that cannot be used are the TlsFailed of
    that connection; if they are wrong already, of this call.
    """
    if tls.is_on:
        tls_context(tls)
    begin = partial(_begun, _BEGINNINGS[engine.dialect.name], tls, deadline_s)

    @event.listens_for(engine.sync_engine, "do_connect")
    def _prepare(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        options["async_creator_fn"] = begin


async def _begun(begin: _Begin, tls: TlsOptions, deadline_s: float, /, **options: Any) -> Any:
    try:
        async with asyncio.timeout(deadline_s):
            # In a thread: a store of authorities is large, and the folder may be that of a network.
            context = await asyncio.to_thread(tls_context, tls) if tls.is_on else False
            return await begin(tls, deadline_s, ssl=context, **options)
    except TimeoutError as error:
        raise StoreUnavailable(f"the server did not finish the handshake within {deadline_s:g} s") from error
    except BsoError:
        raise
    except Exception as error:
        why = why_tls_failed(error) if tls.is_on else None
        if why is None:
            raise
        raise TlsFailed(f"TLS with the database failed: {why}") from error


async def _begin_mysql(tls: TlsOptions, deadline_s: float, /, *, init_command: str, **options: Any) -> Any:
    from asyncmy.connection import Connection

    # Left to asyncmy, the session's settings would take three round trips: they, a COMMIT, and autocommit.
    connection: Any = Connection(**options, autocommit=None, connect_timeout=math.ceil(deadline_s))  # type: ignore[no-untyped-call]
    try:
        await connection.connect()
    except Exception as error:
        capabilities = getattr(connection, "server_capabilities", None)
        if capabilities is None:  # the server has not greeted
            raise
        fault = _mysql_fault(error, tls, offers_tls=bool(capabilities & _OFFERS_TLS))
        if fault is None:
            raise
        raise fault from error
    if tls.is_on and not connection.server_capabilities & _OFFERS_TLS:
        connection.close()  # it is encrypted all the same: somebody in between has changed the greeting
        raise _no_tls()
    try:
        await connection.query(init_command)
    except BaseException:  # the deadline, too: nobody else has this connection
        connection.close()
        raise
    return connection


def _mysql_fault(error: Exception, tls: TlsOptions, *, offers_tls: bool) -> Exception | None:
    code = error.args[0] if error.args else None
    if code == _INSECURE_TRANSPORT:
        return _encryption_required(error)
    if code in _ACCESS_DENIED and offers_tls:
        return _login_refused(error, tls)
    if not tls.is_on:
        return None
    if not offers_tls:
        return _no_tls()
    alert = re.search(r"\[SSL: (\w+)\]", str(error))
    if alert and error.__cause__ is None:  # asyncmy keeps but the words of what ended an established connection
        refusal = ssl.SSLError(ssl.SSL_ERROR_SSL, alert[0])
        refusal.reason = alert[1]
        return refusal
    if code in _SERVER_GONE or isinstance(error.__cause__, ConnectionError | ssl.SSLEOFError):
        return _lost(error, tls)
    return None


async def _begin_postgresql(tls: TlsOptions, deadline_s: float, /, **options: Any) -> Any:
    import asyncpg  # type: ignore[import-untyped]  # it brings no types

    try:
        # Without these arguments, variables like PGSSLNEGOTIATION would have a say.
        return await asyncpg.connect(**options, direct_tls=False, timeout=math.ceil(deadline_s))
    except asyncpg.InvalidPasswordError:
        raise
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise _login_refused(error, tls) from error
    except (ConnectionError, asyncpg.ConnectionDoesNotExistError) as error:
        if "rejected SSL upgrade" in str(error):
            raise _no_tls() from error
        if not tls.is_on or isinstance(error, ConnectionRefusedError) or why_tls_failed(error) is not None:
            raise
        raise _lost(error, tls) from error


_BEGINNINGS: dict[str, _Begin] = {"mysql": _begin_mysql, "postgresql": _begin_postgresql}


def _no_tls() -> TlsFailed:
    return TlsFailed(
        "the database's server offers no TLS: give it a certificate (docs/encryption.md), or put tls=off into the "
        "address where nobody else can read the connection"
    )


def _encryption_required(error: Exception) -> TlsFailed:
    return TlsFailed(
        f"the database's server takes encrypted connections only: put tls=verify into the address ({words_of(error)})"
    )


def _login_refused(error: Exception, tls: TlsOptions) -> StoreLoginRefused:
    if tls.is_on:
        return StoreLoginRefused(
            f"the database refused the login: check user, password and name of the database, and whether this login "
            f"needs {_needed(tls)}: {words_of(error)}"
        )
    return StoreLoginRefused(
        "the database refused the login, which came unencrypted: if the server needs TLS for it, put tls=verify into "
        f"the address; else check user, password and name of the database: {words_of(error)}"
    )


def _lost(error: Exception, tls: TlsOptions) -> StoreUnavailable:
    return StoreUnavailable(
        "the database's server closed the connection before the login was over: its log says why, for instance that "
        f"it needs {_needed(tls)}: {words_of(error)}"
    )


def _needed(tls: TlsOptions) -> str:
    return "a certificate (tls_cert=FILE)" if tls.cert is None else f"another certificate than tls_cert={tls.cert}"
