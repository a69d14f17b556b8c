"""What a rank brings to a training of several."""

from __future__ import annotations

from collections.abc import Mapping

from bso.domain.job_spec import JobSpec
from bso_client.distributed.devices import devices_of, is_counted_elsewhere, machine_name
from bso_client.distributed.membership import Equipment, Member
from bso_client.distributed.ranks import Ranks
from bso_client.distributed.torch_ranks import share_of
from bso_client.instruments import Instruments
from bso_client.options import OptimizerOptions
from bso_client.training.state import TrainingState


def equipment_for(
    instruments: Instruments,
    ranks: Ranks,
    *,
    spec: JobSpec,
    options: OptimizerOptions,
    environ: Mapping[str, str],
    saved: TrainingState | None,
) -> Equipment:
    """This rank's equipment. Raises InvalidSetting, and InvalidSpec where batch sizes cannot be divided among ranks."""
    share = share_of(options.get("data_parallel_group"), ranks, is_uneven=options.get("uneven", False))
    share.check(spec.batch_sizes)
    member = Member(
        hardware=instruments.hardware,
        is_given=instruments.is_hardware_given,
        devices=devices_of(instruments.monitor, environ, machine=machine_name()),
        is_counted_elsewhere=is_counted_elsewhere(instruments.monitor),
        share_size=share.size,
        resumes=None if saved is None else f"trial {saved.trial_number} of job {saved.job_id}",
    )
    return Equipment(member=member, share=share, monitor=instruments.monitor, assumed=instruments.assumed)
