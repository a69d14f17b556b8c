"""The power limit at which a training costs least: profiled while it trains, remembered, restored at its end.

``optimizer``    PowerLimitOptimizer: the hooks that a training loop calls
``follower``     goes from training to training: agrees with other ranks, profiles, sets the best limit
``agreement``    rules: what all ranks may do together, how far they have come, and the profile that they measure
``selection``    rules: which limit of a profile is the best
``tuner``        one training: where its profile is kept, and how its limits are measured
``limits``       the GPUs of this process and their limit, set and restored
``guard``        the lock and the record of each GPU, and the process that restores limits after a SIGKILL
"""
