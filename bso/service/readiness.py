"""Whether a store can be used by this program."""

from __future__ import annotations

from typing import Protocol

from bso.service.errors import SchemaMissing, StoreNotReady
from bso.service.records import SchemaState, SchemaStatus


class HasSchema(Protocol):
    """All of a store that this module needs."""

    async def schema_state(self) -> SchemaState:
        """Which schema the store has."""
        ...


async def require_schema(store: HasSchema) -> SchemaState:
    """Return if the store has exactly this program's schema.

    Raises SchemaMissing where an operator has to run ``bso migrate``, StoreNotReady where a newer release has migrated
    the store and this program has to be upgraded; or what the store raises when it is away.
    """
    state = await store.schema_state()
    if state.status is SchemaStatus.NEWER:
        raise StoreNotReady(
            f"the schema is {state.found}, this program knows {state.expected}: a newer release was here, upgrade"
        )
    if state.status is not SchemaStatus.CURRENT:
        raise SchemaMissing(f"the schema is {state.found or 'missing'}, expected {state.expected}: run `bso migrate`")
    return state
