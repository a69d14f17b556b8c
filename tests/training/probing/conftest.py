"""Optimizers over memory."""

from tests.unit.client.fixtures import (
    even_steps,
    make_bso,
    monitor,
    no_environment,
    optimizer,
    usual_options,
    usual_spec,
)

__all__ = ["even_steps", "make_bso", "monitor", "no_environment", "optimizer", "usual_options", "usual_spec"]
