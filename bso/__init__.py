"""Find the batch size at which a recurring training job costs least."""
