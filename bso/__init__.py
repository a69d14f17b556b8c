"""Find the batch size at which a recurring training job costs least."""

__distribution__ = "bso-optimizer"
"""The marker by which bso_optimizer recognises this file: other distributions install a package called bso, too."""
