"""The curve policy: smooth curves over the batch size for epochs and for their price, and the knowledge gradient.

cost(b) = epochs(b) * epoch_cost(b). Epochs to the target are noisy and smooth in log2 b, whatever the hardware; the
cost of an epoch belongs to a hardware kind, and varies between runs by as much as the job shows. One Gaussian process
for the logarithm of each (Rasmussen and Williams, 2006); another batch size than the best known one is run only if what
it may save over the recurrences to come exceeds its extra price (the knowledge gradient: Frazier, Powell and Dayanik,
2009).

What is remembered: ``records`` (epochs), ``cost_records`` (epoch costs), ``sums`` (of both), ``validation`` (landmarks
of validation curves), ``surprises`` (tests for changes of epochs); ``evolution`` applies events to it. What is
believed: ``beliefs``, ``epoch_priors``, ``cost_beliefs``, on ``gaussian_process`` and ``normal``. What a trial's end
says: ``learning``, ``cost_observations``. What is decided: ``standing`` (which batch sizes may run), ``choosing`` and
``values`` (which one does), ``judging`` (whether it goes on), ``view`` (all of that for one trial), and ``policy``,
which others call.
"""
