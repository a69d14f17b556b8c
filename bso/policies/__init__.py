"""The policies of this distribution, a package each: ``POLICY``, its memory, its part of the fold, its descriptions."""

DEFAULT = "curve"
"""The policy of a new job whose specification names none."""
