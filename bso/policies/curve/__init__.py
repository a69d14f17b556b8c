"""The curve policy: smooth curves over the batch size for epochs and for their price, and the knowledge gradient.

cost(b) = epochs(b) * epoch_cost(b). Epochs to the target are noisy and smooth in log2 b, whatever the hardware; the
cost of an epoch belongs to a hardware kind, and varies between runs by as much as the job shows. One Gaussian process
for the logarithm of each (Rasmussen and Williams, 2006); another batch size than the best known one is run only if what
it may save over the recurrences to come exceeds its extra price (the knowledge gradient: Frazier, Powell and Dayanik,
2009).

What is remembered: ``epoch_records`` and ``cost_records``, with ``validation`` (landmarks of validation curves) and
``surprises`` (tests for changes of epochs); ``memory`` applies events to it. What is believed: ``beliefs``, on
``hypotheses``, ``gaussian_process`` and ``normal``. What is learnt from a trial's end: ``lessons``, by
``epoch_observations`` and ``cost_observations``. What is decided: ``standing`` (which batch sizes may run), ``choices``
and ``values`` (which one does), ``stops`` (whether it goes on), ``view`` (what matters for a running trial), and
``policy``, which others call.
"""

from bso.policies.curve.policy import CurvePolicy

POLICY = CurvePolicy()
