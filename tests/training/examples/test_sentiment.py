"""The sentiment example: slices of drifting messages, one for each recurrence, and the drift is noticed."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.client.test_examples import EXAMPLES, run
from tests.servers import PATIENCE_S

SENTIMENT = EXAMPLES / "sentiment"
BSO = Path(sys.executable).with_name("bso")
SHORT = ("--batch-sizes", "64", "128")
PAPER = ("--policy", "pruning_thompson", "--pruning-rounds", "1")


def python(script: str, *arguments: object) -> Sequence[str]:
    return [sys.executable, str(SENTIMENT / script), *map(str, arguments)]


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven slices of 5400 messages to train on; the language changes with the sixth."""
    folder = tmp_path_factory.mktemp("messages")
    messages, slices = folder / "messages.csv", folder / "slices"
    subprocess.run(
        python("generate.py", messages, "--rows", 42_000, "--change-at", 5 / 7), check=True, timeout=PATIENCE_S
    )
    command = python("slice.py", messages, slices, "--time", "time", "--window", 6000, "--stride", 6000)
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return slices


def test_drift_is_noticed_and_recorded_in_the_recurrence_whose_data_changed(tmp_path: Path, slices: Path) -> None:
    printed = run(tmp_path, *python("train.py", "--slices", slices, "--all", "--model", "scratch", *SHORT, *PAPER))
    history = run(tmp_path, str(BSO), "events", "history", "--type", "change_point", "--json")
    changes = [json.loads(line) for line in history.splitlines()]

    with_model = re.findall(r"slice (\d+), .* reached the target", printed)
    assert with_model == [str(number) for number in range(1, 8)]
    recurrences = {number: int(slice_) for slice_, number in re.findall(r"slice (\d+), .*: trial (\d+),", printed)}
    assert any(recurrences[str(event["payload"]["trial_number"])] in {6, 7} for event in changes)


def test_each_slice_has_its_model_although_trainings_begin_to_need_more_epochs(tmp_path: Path, slices: Path) -> None:
    printed = run(tmp_path, *python("train.py", "--slices", slices, "--all", "--model", "scratch", *SHORT))

    with_model = re.findall(r"slice (\d+), .* epoch (\d+), .* reached the target", printed)
    assert [slice_ for slice_, _ in with_model] == [str(number) for number in range(1, 8)]
    epochs = [int(needed) for _, needed in with_model]
    assert max(epochs[5:]) > max(epochs[:5])


def test_recur_gives_each_recurrence_the_next_slice(tmp_path: Path, slices: Path) -> None:
    script = python("train.py", "--slices", slices, "--model", "scratch", *SHORT)
    printed = run(tmp_path, str(BSO), "recur", "2", "--", *script)

    assert re.findall(r"^slice (\d+), bag-of-words", printed, re.MULTILINE) == ["1", "2"]


def test_a_pretrained_transformer_is_fine_tuned_without_a_network(tmp_path: Path, slices: Path) -> None:
    model = tiny_bert(tmp_path / "tiny-bert", slices / "slice-0001" / "training.csv")
    arguments = ("--slice", 1, "--model", model, "--batch-sizes", 64, "--learning-rate", 0.003)
    printed = run(tmp_path, *python("train.py", "--slices", slices, *arguments))

    assert re.search(r"slice 1, tiny-bert: trial 1, batch size 64, .* the metric .* reached the target", printed)


def test_the_trainer_fine_tunes_the_slice_of_its_recurrence_and_leaves_a_model(tmp_path: Path, slices: Path) -> None:
    model = tiny_bert(tmp_path / "tiny-bert", slices / "slice-0001" / "training.csv")
    quick = ("--batch-sizes", 64, "--default-batch-size", 64, "--learning-rate", 0.003, "--max-epochs", 6)
    script = python("train_trainer.py", "--slices", slices, "--model", model, "--out", tmp_path / "out", *quick)
    printed = run(tmp_path, str(BSO), "recur", "1", "--", *script)

    assert re.search(r"slice 1: trial 1, batch size 64: the metric .* reached the target", printed)
    assert (tmp_path / "out" / "model-1" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--slices", "nix", "--slice", "1"), "make the slices with slice.py"),
        (("--slice", "99"), "there is no slice 99"),
        (("--slice", "1", "--model", "nix"), "fetch it with `hf download nix`"),
        ((), "give --slice N or --all, or run under `bso recur`"),
    ],
)
def test_what_is_missing_is_printed_in_a_line(
    tmp_path: Path, slices: Path, arguments: tuple[str, ...], said: str
) -> None:
    code = 1 if arguments else 2
    assert said in run(tmp_path, *python("train.py", "--slices", slices, *arguments), code=code)


def tiny_bert(folder: Path, corpus: Path) -> Path:
    """A BERT of one narrow layer with weights drawn at random, and its tokenizer, as a folder that can be loaded."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir()
    words = sorted({word for line in corpus.read_text().splitlines() for word in line.split(",")[-1].split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder
