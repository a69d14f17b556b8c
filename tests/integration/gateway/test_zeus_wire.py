"""What Zeus' server promises its clients (zeus 0.16), over both ways to decide."""

import uuid
from typing import Any

import pytest

from tests.integration.gateway.conftest import SPEC, Gateway, StartGateway

FILLED_IN = {
    "eta_knob": 0.5,
    "beta_knob": 2.0,
    "higher_is_better_metric": True,
    "num_pruning_rounds": 2,
    "window_size": 0,
    "mab_prior_mean": 0.0,
    "mab_prior_precision": 0.0,
    "mab_num_explorations": 2,
    "mab_seed": None,
}
GO_ON = {"stop_train": False, "converged": False, "message": "Stop condition not met, keep training"}


def test_a_job_is_registered_once_and_known_afterwards(gateway: Gateway) -> None:
    first, second = gateway.register(), gateway.register()
    assert (first.status, second.status) == (201, 200)
    assert first.value == second.value == {**SPEC, **FILLED_IN, "batch_sizes": [32, 64, 128], "job_id": gateway.job_id}
    assert gateway.register(batch_sizes=[128, 64, 32]).status == 200, "the order of the batch sizes says nothing"


def test_unknown_fields_are_ignored(gateway: Gateway) -> None:
    answer = gateway.register(color="blue")
    assert answer.status == 201
    assert "color" not in answer.value


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_sizes": [32, 64]},
        {"default_batch_size": 32},
        {"eta_knob": 0.6},
        {"beta_knob": None},
        {"target_metric": 0.91},
        {"higher_is_better_metric": False},
        {"max_epochs": 11},
        {"num_pruning_rounds": 3},
        {"window_size": 5},
        {"mab_prior_mean": 1.0},
        {"mab_prior_precision": 1.0},
        {"mab_num_explorations": 3},
        {"mab_seed": 7},
        {"max_power": 301.0},
        {"number_of_gpus": 2},
        {"gpu_model": "A100"},
        {"job_id_prefix": "mn"},
    ],
)
def test_another_specification_is_a_conflict_until_the_job_is_deleted(
    gateway: Gateway, changes: dict[str, Any]
) -> None:
    gateway.register()
    refused = gateway.register(**changes)
    assert refused.status == 409
    assert list(refused.value) == ["message"]
    assert "registered with other values" in refused.value["message"]
    assert gateway.register().status == 200, "nothing has changed"
    deleted = gateway.ask("DELETE", f"/jobs?job_id={gateway.job_id}")
    assert (deleted.status, deleted.value) == (200, None)
    assert gateway.register(**changes).status == 201


def test_a_job_without_an_id_gets_one_that_begins_with_the_prefix(gateway: Gateway) -> None:
    first, second = (gateway.register(job_id=None) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.value["job_id"].startswith("mnist-")
    assert first.value["job_id"] != second.value["job_id"]
    assert gateway.begin(first.value["job_id"])["batch_size"] == 64


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch_sizes": []}, "batch_sizes"),
        ({"batch_sizes": [64, "many"]}, "batch_sizes"),
        ({"batch_sizes": [64, 64]}, "batch_sizes"),
        ({"default_batch_size": 65}, ""),
        ({"default_batch_size": 0}, "default_batch_size"),
        ({"eta_knob": 1.1}, "eta_knob"),
        ({"beta_knob": 0}, "beta_knob"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"num_pruning_rounds": -1}, "num_pruning_rounds"),
        ({"max_power": 0}, "max_power"),
        ({"number_of_gpus": 0}, "number_of_gpus"),
        ({"gpu_model": ""}, "gpu_model"),
        ({"job_id": "cifar-1"}, ""),
        ({"job_id": "mnist 1"}, "job_id"),
        ({"job_id_prefix": None}, "job_id_prefix"),
    ],
)
def test_a_wrong_field_is_named(alone: Gateway, changes: dict[str, Any], field: str) -> None:
    answer = alone.register(**changes)
    assert answer.status == 422
    details = answer.value["detail"]
    assert all(set(detail) == {"loc", "msg", "type"} for detail in details)
    assert [detail["loc"][:2] for detail in details] == [["body", *([field] if field else [])]]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"{}"])
def test_a_body_that_is_none_is_refused(alone: Gateway, body: bytes) -> None:
    gateway = alone
    for method, path in (("POST", "/jobs"), ("POST", "/report"), ("PATCH", "/trials")):
        answer = gateway.ask(method, path, body)
        assert answer.status == 422, (method, path)
        assert isinstance(answer.value["detail"], list)


def test_a_training_that_reaches_its_target(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    assert trial == {"job_id": gateway.job_id, "batch_size": 64, "trial_number": 1}
    assert gateway.report(trial, 1).value == GO_ON
    reached = gateway.report(trial, 2, metric=0.95)
    assert (reached.status, reached.value) == (
        200,
        {"stop_train": True, "converged": True, "message": "Train succeeded"},
    )
    again = gateway.report(trial, 3, metric=0.96).value
    assert again == {
        "stop_train": True,
        "converged": True,
        "message": "Result for this trial(1) is already reported.",
    }
    assert gateway.end(trial).value is None
    assert gateway.report(trial, 3).value == again


def test_a_training_that_does_not_is_followed_by_another_batch_size(gateway: Gateway) -> None:
    gateway.register(max_epochs=2)
    trial = gateway.begin()
    assert gateway.report(trial, 1).value == GO_ON
    stopped = gateway.report(trial, 2).value
    assert (stopped["stop_train"], stopped["converged"]) == (True, False)
    assert gateway.end(trial).status == 200
    again = gateway.report(trial, 3).value
    assert (again["stop_train"], again["converged"]) == (True, False)
    assert "already reported" in again["message"]
    assert gateway.begin()["batch_size"] != 64


def test_a_metric_that_is_no_number_twice_in_a_row_ends_the_training(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    assert gateway.report(trial, 1, metric=float("nan")).value == GO_ON
    ended = gateway.report(trial, 2, metric=float("nan")).value
    assert (ended["stop_train"], ended["converged"]) == (True, False)
    assert ended["message"].startswith("diverged"), "and not that max_epochs have passed"


def test_every_request_for_a_batch_size_begins_a_trial(gateway: Gateway) -> None:
    gateway.register()
    trials = [gateway.begin()["trial_number"] for _ in range(3)]
    assert trials == [1, 2, 3]
    answer = gateway.ask("GET", f"/jobs/batch_size?job_id={gateway.job_id}")
    assert answer.headers["cache-control"] == "no-store"
    assert gateway.ask("HEAD", f"/jobs/batch_size?job_id={gateway.job_id}").status == 405
    assert gateway.begin()["trial_number"] == 5, "asking with HEAD begins none"


def test_ranks_that_report_the_same_epochs(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    for epoch in (1, 2):
        for rank in range(4):
            figures = {"time": 60.0 * epoch + rank, "energy": 900.0 * epoch - 50.0 * rank}
            assert gateway.report(trial, epoch, **figures).value == GO_ON
    answers = [gateway.report(trial, 3, metric=0.95, energy=2500.0 - rank).value for rank in range(4)]
    assert [(answer["stop_train"], answer["converged"]) for answer in answers] == [(True, True)] * 4


def test_unknown_jobs_and_trials(gateway: Gateway) -> None:
    gateway.register()
    nobody = {"job_id": "nobody", "batch_size": 64, "trial_number": 1}
    for answer, status in (
        (gateway.ask("GET", "/jobs/batch_size?job_id=nobody"), 400),
        (gateway.ask("GET", "/jobs/batch_size?job_id=%00"), 400),
        (gateway.report(nobody, 1), 400),
        (gateway.report({**nobody, "job_id": gateway.job_id}, 1), 400),
        (gateway.end(nobody), 404),
        (gateway.end({**nobody, "job_id": gateway.job_id}), 404),
        (gateway.end({**nobody, "job_id": "no name"}), 404),
        (gateway.ask("DELETE", "/jobs?job_id=nobody"), 404),
    ):
        assert (answer.status, list(answer.value)) == (status, ["message"])
    assert gateway.ask("GET", "/jobs/batch_size").status == 422
    assert gateway.ask("DELETE", "/jobs").status == 422


def test_a_trial_has_one_batch_size(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    assert gateway.report({**trial, "batch_size": 32}, 1).status == 400
    assert gateway.end({**trial, "batch_size": 32}).status == 404
    assert gateway.report(trial, 1).value == GO_ON


def test_the_end_of_a_training(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    gateway.report(trial, 1)
    for _ in range(2):
        ended = gateway.end(trial)
        assert (ended.status, ended.value) == (200, None)
    late = gateway.report(trial, 2)
    assert late.status == 400
    assert "converged is not set" in late.value["message"]


def test_an_end_before_the_first_report_counts_against_the_batch_size(gateway: Gateway) -> None:
    gateway.register()
    gateway.end(gateway.begin())
    assert gateway.begin()["batch_size"] != 64


def test_a_deleted_job(gateway: Gateway) -> None:
    gateway.register()
    trial = gateway.begin()
    assert gateway.ask("DELETE", f"/jobs?job_id={gateway.job_id}").status == 200
    assert gateway.ask("DELETE", f"/jobs?job_id={gateway.job_id}").status == 404
    assert gateway.report(trial, 1).status == 400
    assert gateway.register().status == 201
    assert gateway.begin()["batch_size"] == 64


def test_a_target_above_the_bound_is_kept_unless_it_is_strict(start: StartGateway) -> None:
    for is_strict, job_id in ((False, "mnist-kept"), (True, "mnist-strict")):
        gateway = start(zeus_strict=is_strict, zeus_policy="pruning_thompson")
        gateway.register(job_id=job_id, beta_knob=1.5)
        gateway.report(gateway.begin(job_id), 1, metric=0.95)
        trial = gateway.begin(job_id)
        judged = gateway.report(trial, 1, metric=0.95, time=600.0, energy=10_000.0).value
        assert (judged["stop_train"], judged["converged"]) == (True, not is_strict)
        assert "above beta_knob" in judged["message"]
        again = gateway.report(trial, 2, metric=0.95, time=700.0, energy=11_000.0).value
        assert again["converged"] is not is_strict


def test_the_policy_of_new_jobs_may_change_without_a_conflict(start_gateway: StartGateway) -> None:
    with start_gateway() as gateway:
        assert gateway.register(job_id="mnist-1").status == 201
    with start_gateway(zeus_strict=True) as gateway:
        assert gateway.register(job_id="mnist-1").status == 200
        assert gateway.begin("mnist-1")["trial_number"] == 1


def test_an_idempotency_key_begins_one_trial(gateway: Gateway) -> None:
    gateway.register()
    key = str(uuid.uuid4())
    path = f"/jobs/batch_size?job_id={gateway.job_id}"
    first, second = (gateway.ask("GET", path, Idempotency_Key=key) for _ in range(2))
    assert first.value == second.value
    assert gateway.ask("GET", path, Idempotency_Key="mine").status == 400
