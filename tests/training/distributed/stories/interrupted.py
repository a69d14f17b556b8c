"""Rank 0 gets a signal while it waits in on_evaluate for rank 1, which is busy until it is ended."""

import signal
import sys
import threading

from tests.training.distributed.rank_notes import RANK, join, make_bso, say

number = signal.Signals[sys.argv[1]]


def send_when_waiting() -> None:
    """Send the signal once the exchange with the other rank is under way."""
    tick = threading.Event()
    while not any(thread.name == "bso ranks" for thread in threading.enumerate()):
        tick.wait(0.01)
    say(signalled=True)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, number)


signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started this may have had it ignored
join()
bso = make_bso(rank_timeout=1e6)
for trial in bso.trials():
    try:
        with trial:
            if RANK == 1:
                signal.pause()
            threading.Thread(target=send_when_waiting, daemon=True).start()
            trial.on_evaluate(0.1)
    except KeyboardInterrupt:
        bso.close()
        raise
