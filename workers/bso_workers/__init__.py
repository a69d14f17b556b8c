"""Answer commands: worker, relay, reaper and their life cycle."""

from bso_optimizer import require_own_package

require_own_package()
