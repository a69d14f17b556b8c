"""The batch size of a trial in TrainingArguments: before Trainer, loader and schedule exist."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Seq2SeqTrainingArguments

from bso_client import BatchSizeOptimizer, InvalidSetting, LearningRate, Trial
from bso_client.integrations.transformers import apply_trial
from tests.training.integrations.tiny import arguments, trainer_for
from tests.training.integrations.tiny_task import Classifier
from tests.unit.client.doubles import job_spec
from tests.unit.client.fixtures import MakeOptimizer

SET_BY_APPLY_TRIAL = {
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "output_dir",
    "resume_from_checkpoint",
}


def test_the_batch_size_is_that_of_one_update(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, num_train_epochs=1), trial)
    trainer = trainer_for(args, model=(model := Classifier()))
    trainer.train()
    trials.close()

    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)
    assert (model.batches_seen, trainer.state.global_step) == ([16] * 4, 4)


def test_what_does_not_fit_is_accumulated(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, num_train_epochs=1), trial, max_micro_batch_size=5)
    trainer = trainer_for(args, model=(model := Classifier(largest_batch=5)))
    trainer.train()
    trials.close()

    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert (model.batches_seen, trainer.state.global_step) == ([4] * 16, 4)


def test_accumulation_steps_that_are_asked_for_are_kept(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, gradient_accumulation_steps=2), trial)
    with pytest.raises(InvalidSetting, match="gradient_accumulation_steps=3 equal micro batches"):
        apply_trial(arguments(tmp_path, gradient_accumulation_steps=3), trial)
    trials.close()

    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (8, 2)


def test_the_gpus_of_one_process_share_the_batch(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    base = arguments(tmp_path)
    base._n_gpu = 2  # as if torch.nn.DataParallel would be used
    args = apply_trial(base, trial)
    base._n_gpu = 3
    with pytest.raises(InvalidSetting, match="16 cannot be divided equally among 3"):
        apply_trial(base, trial)
    trials.close()

    assert args.per_device_train_batch_size == 8


def test_everything_else_stays_as_it_is_and_the_given_arguments_do_altogether(
    bso: BatchSizeOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    base = arguments(
        tmp_path,
        eval_strategy="steps",
        eval_steps=0.25,
        save_strategy="steps",
        save_steps=0.25,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        warmup_steps=0.1,
        activation_checkpointing=False,
        lr_scheduler_type="cosine",
        logging_nan_inf_filter=False,
        label_names=["labels"],
    )
    before = base.to_dict()
    args = apply_trial(base, trial)
    trials.close()

    changed = {
        field.name for field in dataclasses.fields(base) if getattr(args, field.name) != getattr(base, field.name)
    }
    assert base.to_dict() == before
    assert changed <= SET_BY_APPLY_TRIAL


def test_the_class_of_the_arguments_is_kept(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    base = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[], predict_with_generate=True)
    args = apply_trial(base, trial)
    trials.close()

    assert type(args) is Seq2SeqTrainingArguments
    assert args.predict_with_generate


class TrialOfTwoRanks(Trial):
    """A trial of two processes, each of which sees only itself: what accelerate makes of torchrun without a GPU."""

    ranks = SimpleNamespace(size=2)  # all that is asked of them

    def __init__(self) -> None:
        pass


def test_arguments_and_trial_in_each_others_place_are_refused(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    args: Any = arguments(tmp_path)
    given: Any = bso
    with pytest.raises(InvalidSetting, match="needs TrainingArguments first, got BatchSizeOptimizer"):
        apply_trial(given, args)
    with pytest.raises(InvalidSetting, match=r"needs a trial, got BatchSizeOptimizer: .* `for trial in bso.trials\(\)"):
        apply_trial(args, given)


def test_a_trainer_that_would_train_by_itself_in_each_process_is_refused(tmp_path: Path) -> None:
    trial = TrialOfTwoRanks()
    with pytest.raises(InvalidSetting, match=r"2 processes .* TrainingArguments knows of one.* pass use_cpu=True"):
        apply_trial(arguments(tmp_path), trial)


def test_the_learning_rate_follows_the_rule_of_the_optimizer(make_bso: MakeOptimizer, tmp_path: Path) -> None:
    rate = LearningRate(1e-3, reference_batch_size=4, rule="square_root")
    trial = next(trials := make_bso(learning_rate=rate).trials())
    args = apply_trial(arguments(tmp_path), trial)
    trainer = trainer_for(args)
    trainer.create_optimizer_and_scheduler(num_training_steps=10)
    trials.close()

    assert trial.batch_size == 16
    assert trainer.optimizer.param_groups[0]["initial_lr"] == pytest.approx(2e-3)


def test_without_a_rule_the_learning_rate_stays(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, learning_rate=3e-4), trial)
    trials.close()

    assert args.learning_rate == 3e-4


def test_a_trainer_that_finds_batch_sizes_itself_is_refused(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    with pytest.raises(InvalidSetting, match="auto_find_batch_size=True makes the Trainer choose another"):
        apply_trial(arguments(tmp_path, auto_find_batch_size=True), trial)
    trials.close()


def test_accumulation_hidden_in_the_accelerator_config_is_refused(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    hidden = {"gradient_accumulation_kwargs": {"num_steps": 2}}
    with pytest.raises(InvalidSetting, match="has num_steps, which overrides the accumulation"):
        apply_trial(arguments(tmp_path, accelerator_config=hidden), trial)
    trials.close()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"max_steps": 7}, "max_steps=7 gives a large batch size more samples"),
        ({"num_train_epochs": 3}, "num_train_epochs=3 ends each training before the job's max_epochs=5"),
        ({"num_train_epochs": 8}, "the job's max_epochs=5 ends each training before num_train_epochs=8"),
        ({"warmup_steps": 100}, "warmup_steps=100 warms up over more samples"),
        ({"eval_strategy": "steps", "eval_steps": 50}, "eval_steps=50 evaluates more rarely"),
    ],
)
def test_what_is_rarely_meant_is_said_once(
    make_bso: MakeOptimizer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    chosen: dict[str, object],
    words: str,
) -> None:
    spec = job_spec(batch_sizes=[8, 16], default_batch_size=16, max_epochs=5)
    trial = next(trials := make_bso(spec).trials())
    for _ in range(2):
        apply_trial(arguments(tmp_path, **chosen), trial)
    trials.close()

    assert sum(words in record.message for record in caplog.records) == 1
