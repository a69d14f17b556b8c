"""Optimizers over memory."""

from tests.unit.client.fixtures import make_bso, monitor, no_environment, optimizer, usual_options, usual_spec

__all__ = ["make_bso", "monitor", "no_environment", "optimizer", "usual_options", "usual_spec"]
