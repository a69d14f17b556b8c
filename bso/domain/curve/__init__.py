"""The curve policy: smooth curves over the batch size for epochs and for their price, and the knowledge gradient.

cost(b) = epochs(b) * epoch_cost(b). Epochs to the target are noisy and smooth in log2 b, whatever the hardware; the
cost of an epoch is almost deterministic and belongs to a hardware kind. One Gaussian process for the logarithm of each
(Rasmussen and Williams, 2006); another batch size than the best known one is run only if what it may save over the
recurrences to come exceeds its extra price (the knowledge gradient: Frazier, Powell and Dayanik, 2009).
"""
