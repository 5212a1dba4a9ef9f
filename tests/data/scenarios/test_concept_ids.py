"""Hidden concepts of which clients are told: what baselines with task ids need."""

import pytest
from fakes import diagnostics_of, rounds_of, run_in_process, summary_of, tiny
from text_sets import write_topics

from clients.concept_matching import ConceptMatching
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import ScenarioData
from fcl_flower.rounds import messages
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def told(folder, **values):
    given = {"strategy": "fedweit", "clients": 3, "tasks": 3, "rounds": 6}
    rest = {"scenario": "concepts", "classes_per_task": 0, "scenario.reveal_ids": True}
    return tiny(folder, **{**given, **rest, "evaluate_every": 6, **values})


def stages(transport, kind):
    return [
        (client, messages.decode_request(request.content).stage)
        for client, request in transport.asked
        if request.kind == kind
    ]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"scenario": "overlapped", "scenario.reveal_ids": True},
            "scenario.reveal_ids: got 'reveal_ids', expected one of ",
        ),
        (
            {"scenario.reveal_ids": True, "scenario.mean_duration": 0},
            "scenario.reveal_ids: got true, expected it with hidden concepts of which "
            "a client has one at a",
        ),
        *(
            (
                {"strategy": name, "scenario.reveal_ids": ids},
                "scenario.name: got 'concepts', expected one whose tasks do not come "
                f"again for {name}",
            )
            for name, ids in (("glfc", False), ("matched-ensemble", True))
        ),
    ],
)
def test_what_does_not_go_with_ids_or_with_concepts_is_refused(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve(RunConfig.from_settings(**{"scenario": "concepts", **values}))


def test_the_schedule_knows_what_the_stream_knows(tmp_path):
    config = told(tmp_path, **{"scenario.mean_duration": 3}, client_fraction=0.7)
    run = Built(resolve(config))
    for client in range(3):
        for number in range(1, 7):
            expected = run.scenario.stream.concept_at(client, number)
            assert run.schedule.stage(number, client).task == expected
    untold = resolve(config.replace(**{"scenario.reveal_ids": False}))
    assert Built(untold).schedule.concept_at is None


@pytest.mark.soak
@pytest.mark.run
def test_fedweit_learns_every_concept_that_it_is_told_of(tmp_path):
    run_in_process(told(tmp_path, clients=2, tasks=2, epochs=3, seed=1))
    found = summary_of(tmp_path)
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 6
    # A concept has five classes.
    assert min(found["accuracy_matrix"][-1]) > 0.8
    assert found["hidden"] == {"window": 320, "mean_duration": 1, "reveal_ids": True}
    assert "reveal_ids = true" in (tmp_path / "config.toml").read_text()


@pytest.mark.run
def test_a_client_is_told_of_its_concept_and_of_no_other(tmp_path):
    config = told(
        tmp_path,
        client_fraction=0.7,
        **{"strategy.params": 'knowledge = "all"'},
        seed=2,
    )
    transport = run_in_process(config)
    stream = Built(resolve(config)).scenario.stream
    met, uploaded_groups = {}, set()
    trains = [
        (client, request)
        for client, request in transport.asked
        if request.kind == "train"
    ]
    for number in range(1, 7):
        now = []
        for client, request in trains:
            stage = messages.decode_request(request.content).stage
            if stage.round != number:
                continue
            now.append((client, stage.task))
            assert (stage.task,) == stream.concepts_at(client, number)
            assert stage.ends_task
            assert stage.starts_task == (
                stage.task not in met.setdefault(client, set())
            )
            met[client].add(stage.task)
            foreign = {
                tuple(map(int, group.split("/")[1:]))
                for group in messages.decode_payload(request.content)
                if group.startswith("adapters/")
            }
            others = {place for place in uploaded_groups if place[0] != client}
            assert foreign == (others if stage.starts_task else set())
        uploaded_groups.update(now)
    attention = diagnostics_of(tmp_path)["attention"]["values"]
    users = [tuple(map(int, name.split("/"))) for name in attention]
    assert users
    assert all(task in met[client] for client, task in users)
    assert len({task for _, task in users}) > 1


@pytest.mark.run
def test_who_is_told_its_concept_need_not_recognise_it(tmp_path, monkeypatch):
    seen = []

    def select_model(self, state, received, recent):
        raise AssertionError("it was told")

    def predict(self, state, received, task, x):
        seen.append(task)
        return plain(self, state, received, task, x)

    plain = ConceptMatching.predict
    monkeypatch.setattr(ConceptMatching, "select_model", select_model)
    monkeypatch.setattr(ConceptMatching, "predict", predict)
    given = {"strategy": "concept-matching", "strategy.params": "concepts = 3"}
    run_in_process(told(tmp_path, **given, rounds=2))
    assert set(seen) == {0, 1, 2}
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 2


@pytest.mark.run
def test_a_concept_is_recognised_by_validation_samples(tmp_path, monkeypatch):
    given, used = [], set()
    examples, select_model = ScenarioData.examples, ConceptMatching.select_model

    def noted(self, task, split):
        found = examples(self, task, split)
        given.append((found.x, split))  # kept, so that no two have one place
        return found

    def watched(self, state, received, recent):
        place = recent.x.data_ptr()
        used.add({x.data_ptr(): split for x, split in given}[place])
        return select_model(self, state, received, recent)

    monkeypatch.setattr(ScenarioData, "examples", noted)
    monkeypatch.setattr(ConceptMatching, "select_model", watched)
    settings = {"strategy": "concept-matching", "clients": 2, "rounds": 1}
    run_in_process(told(tmp_path, **settings, **{"scenario.reveal_ids": False}))

    assert used == {"valid"}
    assert {split for _, split in given} >= {"valid", "test"}


@pytest.mark.run
def test_methods_with_one_model_have_no_use_for_ids(tmp_path):
    given = {"strategy": "fedavg", "rounds": 1, "clients": 2, "evaluate_every": 1}
    for name, ids in (("a", True), ("b", False)):
        run_in_process(told(tmp_path / name, **{"scenario.reveal_ids": ids}, **given))
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]
    assert [one["hidden"]["reveal_ids"] for one in (found, expected)] == [True, False]
    assert "reveal_ids" in (tmp_path / "b" / "report.html").read_text()


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("analytic", {"dataset": "digits", "model": "small"}),
        ("fedweit", {"local_only": True}),
    ],
)
def test_other_methods_run_with_ids(tmp_path, strategy, values):
    run_in_process(told(tmp_path, strategy=strategy, rounds=4, clients=2, **values))
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    assert summary_of(tmp_path)["average_accuracy"] > 0.3


@pytest.mark.run
def test_selective_transfer_knows_tasks_that_begin_at_once(tmp_path):
    config = told(
        tmp_path / "run",
        strategy="fedseit",
        tasks=2,
        **{"strategy.params": 'knowledge = "sit:1", members = 1, dls = true'},
        **write_topics(tmp_path),
    )
    transport = run_in_process(config)
    rows = rounds_of(tmp_path / "run")
    assert [row["failed"] for row in rows] == [[]] * 6
    first = [
        (stage.round, client, stage.task)
        for client, stage in stages(transport, "train")
        if stage.starts_task
    ]
    asked = stages(transport, "query.survey")
    assert [(stage.round, c, stage.task) for c, stage in asked] == first
    overlap = diagnostics_of(tmp_path / "run")["overlap"]
    scored = {task for task, scores in overlap["values"].items() if scores}
    # Nobody has anything in round 1; later the others do.
    assert scored == {f"{c}/{task}" for number, c, task in first if number > 1}
    assert {task.split("/")[1] for task in scored} == {"0", "1"}
    assert {len(overlap["marked"][task]) for task in scored} == {1}
