"""What holds for each method, whatever it does inside: read off its smallest runs."""

from dataclasses import replace

import pytest
import torch
import watched
from every_method import archetypes_first
from fakes import exact, rounds_of, summary_of
from mutants import broken_payloads
from torch.optim.sgd import sgd

from fcl_flower.algorithms.base import ClientLearner, ServerStrategy
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import WireError
from fcl_flower.core.update_checks import finite
from fcl_flower.models.heads import CLOSED
from fcl_flower.rounds.client import model_bytes
from fcl_flower.rounds.codec import encode

AFRESH = {
    "coda-prompt": "begins each round as a training of its own",
    "dolfin": "trains with an optimizer of each round, as LoRM",
    "fedet": "the released code makes an optimizer each round",
    "lorm": "turns between two factors, each with an optimizer of its own",
}
# Closed forms know no class that nobody has sent anything of.
GROWN_ANYHOW = {"analytic", "coda-prompt", "dolfin", "lorm"}
# A factor has as many rows as it has rank, a client as many networks as it has.
OF_ANY_LENGTH = {"sums/within: longer", "valid/within: longer", "meta/held: longer"}
SENDS_NOTHING = {"local", "stl", "apd"}
OLD_MODEL = {"memory/teacher"}
# By method, of a client within its second task: what it stores, and what is the task's;
# of what it receives, what predictions need, and what only training does.
JUDGED = {
    "fedavg": ({"heads"}, set(), {"base"}, set()),
    "ewc": ({"heads", "fisher", "anchor"}, set(), {"base"}, set()),
    "fedcurv": (
        {"heads"},
        set(),
        {"base"},
        {"curvature/fisher", "curvature/weighted"},
    ),
    "scaffold": ({"heads", "control"}, set(), {"base"}, {"control"}),
    "fot": ({"heads"}, set(), {"base"}, set()),
    "replay": ({"heads", "memory"}, set(), {"base"}, set()),
    "der": ({"heads", "memory"}, set(), {"base"}, set()),
    "fedcbdr": ({"heads", "memory", "memory/classes"}, set(), {"base"}, set()),
    "lwf": ({"heads", "memory/classes"}, OLD_MODEL, {"base"}, set()),
    "icarl": ({"heads", "exemplars", "memory/classes"}, OLD_MODEL, {"base"}, set()),
    "dde-icarl": (
        {"heads", "exemplars", "momentum", "memory/classes"},
        OLD_MODEL,
        {"base"},
        set(),
    ),
    "bic": ({"heads", "memory", "memory/classes"}, OLD_MODEL, {"base", "bias"}, set()),
    "ss-il": (
        {"heads", "memory", "memory/tasks", "memory/classes"},
        OLD_MODEL,
        {"base"},
        set(),
    ),
    "podnet": ({"heads", "memory", "memory/classes"}, OLD_MODEL, {"base"}, set()),
    "idbr": ({"heads", "memory", "memory/classes"}, OLD_MODEL, {"base"}, set()),
}


def run_of(kind, name, factory):
    return getattr(watched, kind)(name, factory.mktemp(kind))


# One after another, so that each run is made once and let go of.
@pytest.fixture(
    scope="module", params=archetypes_first([*watched.NAMES, *watched.VARIANTS])
)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def seen(method, tmp_path_factory):
    return run_of("watched", method, tmp_path_factory)


@pytest.fixture(scope="module", params=archetypes_first(watched.NAMES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def plain(name, tmp_path_factory):
    return run_of("plain", name, tmp_path_factory)


@pytest.fixture(scope="module")
def alone(name, tmp_path_factory):
    return run_of("alone", name, tmp_path_factory)


# ---- both sides, watched


@pytest.mark.run
def test_the_chosen_optimizer_is_the_only_one(method, seen):
    assert seen.steps == (set() if method == "analytic" else {sgd})


@pytest.mark.run
def test_all_that_trains_does_so_in_the_chosen_precision(method, seen):
    expected = {("cpu", torch.bfloat16)}

    assert seen.lowered == (set() if method == "analytic" else expected)


@pytest.mark.run
def test_the_first_batch_trains_what_was_loaded_for_evaluation(method, seen):
    if method in ("analytic", "coda-prompt", "disco", "dolfin", "fed-lora", "lorm"):
        pytest.skip("trains nothing of the body as a whole")

    assert seen.modes[0]


@pytest.mark.run
def test_nothing_is_changed_in_place_and_all_can_travel(seen):
    assert seen.problems == []


@pytest.mark.run
def test_both_sides_have_the_parameters_of_the_run(method, seen):
    entry = algorithm(method.partition(" ")[0])
    for strategy in seen.strategies:
        assert isinstance(strategy, ServerStrategy)
        assert type(strategy) is entry.load_server()
    for learner in seen.learners:
        assert isinstance(learner, ClientLearner)
        assert type(learner) is entry.load_client()
        assert learner.params == seen.strategies[0].params
    assert {learner.context.client for learner in seen.learners} == {0, 1}


@pytest.mark.run
def test_no_learner_looks_at_test_data(seen):
    assert seen.trainings
    assert seen.looks == []


@pytest.mark.run
def test_a_round_begins_with_the_moments_that_the_last_one_left(method, seen):
    nothing, last = exact({"moments": {}}), {}
    starts = {(t.stage.round, t.learner.context.client): t for t in seen.trainings}

    assert len(seen.moments) == (0 if method == "analytic" else len(seen.trainings))
    for number, client, before, after in seen.moments:
        goes_on = not starts[number, client].stage.starts_task
        goes_on = goes_on and method not in AFRESH
        assert before == (last[client] if goes_on else nothing)
        assert after != nothing
        last[client] = after


def size(payload, groups):
    return sum(len(encode(t).data) for g in groups for t in payload[g].values())


@pytest.mark.run
def test_what_a_client_stores(method, seen):
    if method not in JUDGED:
        pytest.skip("its bytes are not in the table")
    stored, of_the_task, predicting, training = JUDGED[method]
    for one in (t for t in seen.trainings if t.stage.round == 3):
        assert one.state.keys() == stored | of_the_task | {"optimizer"}
        assert one.received.keys() == predicting | training
        for payload, left_out in ((one.state, of_the_task), (one.received, training)):
            assert all(size(payload, [group]) for group in left_out)
        expected = size(one.state, stored) + size(one.received, predicting)
        # An evaluation sends what clients predict with.
        tested_with = seen.strategies[0].to_predict(one.received)
        assert model_bytes(one.learner, one.state, tested_with) == expected


@pytest.mark.run
def test_a_tensor_that_claims_much_memory_is_refused_and_takes_none(method, seen):
    assert seen.peaks or method in SENDS_NOTHING
    assert max(seen.peaks.values(), default=0) < 8, seen.peaks


def refuses(strategy, state, update):
    try:
        strategy.check_update(state, update)
        finite(update.payload)
    except WireError:
        return True
    return False


@pytest.mark.run
def test_an_update_that_does_not_fit_is_refused(method, seen):
    strategy, kinds, accepted = seen.strategies[0], set(), set()
    for state, update in seen.updates:
        assert not refuses(strategy, state, update)
        if frozenset(update.payload) in kinds:
            continue
        kinds.add(frozenset(update.payload))
        for label, payload in broken_payloads(update.payload):
            if not refuses(strategy, state, replace(update, payload=payload)):
                accepted.add(label)
    assert accepted <= OF_ANY_LENGTH


@pytest.mark.run
def test_no_client_fails_and_a_report_is_written(seen):
    assert all(row["failed"] == [] for row in rounds_of(seen.folder))
    assert (seen.folder / "report.html").stat().st_size > 1000


@pytest.mark.run
def test_test_samples_and_what_a_process_keeps_change_nothing_that_is_learned(
    method, seen, tmp_path_factory
):
    other = run_of("spoilt", method, tmp_path_factory)

    assert sum(kind == "trained" for kind, *_ in seen.notes) >= 4
    assert seen.notes == other.notes
    # The samples were indeed others.
    tested, spoilt = ((s.folder / "accuracy.csv").read_text() for s in (seen, other))
    if method != "disco":  # of which so few steps write no exact answer
        assert tested != spoilt


# ---- two tasks, other devices


@pytest.mark.run
def test_two_tasks_are_learned(plain):
    for matrix in summary_of(plain.folder)["client_accuracy"]:
        assert None not in matrix[1]
    single = '"single"' in (plain.folder / "config.toml").read_text()
    assert single or matrix[1][1] > 0.5


@pytest.mark.run
def test_on_another_device_with_nothing_kept_all_is_the_same(
    name, plain, tmp_path_factory
):
    there = run_of("elsewhere", name, tmp_path_factory)

    assert all(row["failed"] == [] for row in rounds_of(there.folder))
    here, found = summary_of(plain.folder), summary_of(there.folder)
    bytes_here, bytes_there = (
        [summary[key] for key in ("bytes_up", "bytes_down")]
        for summary in (here, found)
    )
    # An encoder, as it is loaded, draws on `meta` for nothing: other weights travel,
    # which compress otherwise.
    if name in ("coda-prompt", "dolfin", "fed-lora", "lorm", "idbr", "disco"):
        assert bytes_there == pytest.approx(bytes_here, rel=0.01)
    else:
        assert found["client_accuracy"] == here["client_accuracy"]
        assert bytes_there == bytes_here


# ---- without communication


@pytest.mark.run
def test_without_communication_no_tensor_travels(name, alone):
    found = summary_of(alone.folder)

    assert all(row["failed"] == [] for row in rounds_of(alone.folder))
    if algorithm(name).federated:
        assert found["bytes_by_kind"]["up"].keys() == {"meta"}
        assert found["bytes_by_kind"]["down"].keys() == {"meta"}
        assert found["nominal_bytes_up"] == found["nominal_bytes_down"] == 0
        assert not any(request.content.tensors for _, request in alone.transport.asked)


@pytest.mark.run
def test_without_communication_nothing_is_changed_in_place(alone):
    assert alone.trainings
    assert alone.problems == []
    assert alone.looks == []


@pytest.mark.run
def test_no_learner_answers_with_a_class_of_a_later_task(name, alone):
    if not watched.grows(name) or name in GROWN_ANYHOW:
        pytest.skip("knows no class that nobody has sent anything of, grown or not")
    found = set()
    for labels, logits in alone.answers:
        closed = sorted({*range(logits.shape[1])} - {*labels})
        found.add(len(closed))
        assert (logits[:, closed] == CLOSED).all()
        assert (logits.argmax(1) != CLOSED).all()
    assert found == {0, 2}


def test_every_method_that_takes_no_growing_head_says_why():
    left = {name for name in watched.NAMES if not watched.grows(name)}

    assert left == {"disco", "fedet", "glfc", "mtl"}
    assert algorithm("fedet").trainer
    assert algorithm("glfc").trainer
