"""The default policy as it would be if it knew that epoch costs hardly vary between runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bso.policies.curve import hypotheses
from bso.policies.curve.memory import NAME as CURVE

KNOWING = f"{CURVE}, knowing that there is no noise"


@contextmanager
def hardly_any_noise() -> Iterator[None]:
    """In this process, of the hypotheses of the noise only the smallest is left. No option of the policy does that."""
    with patch.object(hypotheses, "HYPOTHESES", (min(hypotheses.HYPOTHESES),)):
        yield
