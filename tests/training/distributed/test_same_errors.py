import pytest

from tests.training.distributed.torchrun import Launched, launch


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    done = launch("errors", tmp_path_factory.mktemp("errors"))
    assert done.codes == (0,), done.printed
    return done


def test_processes_that_have_not_found_each_other_get_an_error_that_names_what_comes_first(done: Launched) -> None:
    for rank, [[kind, words]] in enumerate(done.of_all("uninitialised")):
        assert kind == "DistributedNotReady"
        assert words.startswith(f"this is rank {rank} of 2, but no process group is initialised")


def test_batch_sizes_that_the_ranks_cannot_divide_are_refused(done: Launched) -> None:
    [[kind, words]] = done.same("indivisible")
    assert kind == "InvalidSpec"
    assert "batch_sizes are divided among 2 data-parallel processes: expected multiples of 2, got 31" in words
    assert "uneven=True" in words
    [[kind, words]] = done.same("too_small")
    assert "expected at least 2, got 1" in words


def test_uneven_shares_are_allowed_where_that_is_said(done: Launched) -> None:
    assert done.same("size") == [31]
    assert done.of_all("share") == [[16], [15]]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("bad_report", "InvalidReport", "a metric is one number, got the text 'high'"),
        ("twice", "WrongOrder", "a training is running"),
        ("refused", "Refused", "Not yours: job belongs to somebody else"),
        ("unreachable", "Unreachable", "was never registered from this state directory"),
        ("failed", "TrainFailed", "batch size 64 failed (not_converged)"),
        ("out_of_step", "RanksOutOfStep", "(rank 0: get_batch_size, rank 1: on_evaluate): call each on every rank"),
        ("order", "RanksOutOfStep", "(rank 0: sizes, rank 1: rates)"),
    ],
)
def test_an_error_of_one_rank_is_raised_on_every_rank(done: Launched, name: str, kind: str, words: str) -> None:
    [[raised, said]] = done.same(name)
    assert raised == kind
    assert words in said
