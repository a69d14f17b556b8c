"""``bso demo``: a real recurring training job finds its best batch size."""
