"""The default policy with trainings that probe epoch costs, as policies of their own in tables."""

from bso.policies.curve.memory import NAME as CURVE
from bso.simulator import Probing

PROBED = {
    f"{CURVE}, probes that err by {share:.0%} each and in common": Probing(common=share, own=share)
    for share in (0.05, 0.1)
}
"""By name. What probes of a trial have in common comes from the trial, whose run has a factor of its own besides."""
