"""Answer commands: worker, relay, reaper and their life cycle."""
