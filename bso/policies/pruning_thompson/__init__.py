"""The policy of the Zeus paper: exploration with pruning, then Gaussian Thompson sampling (NSDI '23, section 4).

``memory`` is what it remembers, its events, and how they change it; ``exploration`` says what a round tries and when
it ends, ``bandit`` samples costs, ``policy`` decides.
"""

from bso.policies.pruning_thompson.policy import PruningThompson

POLICY = PruningThompson()
