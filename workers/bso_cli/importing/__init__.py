"""``bso import``: what another optimizer has found out, taken over as recorded trials.

``zeus_database`` reads the rows of Zeus' batch size server, ``zeus_history`` says what they mean for a job of ours,
``past`` records that by the optimizer's own rules, ``command`` is what people call.
"""
