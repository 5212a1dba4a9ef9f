"""Single heads that grow with the classes that clients of local data name."""

import numpy as np
import pytest
from fakes import exact, rounds_of, run_in_process, summary_of
from local_runs import NODES, check_extended, config, pulled_in, run, table
from pages import parsed, table_of, verdicts
from resuming import PulledPlugError, outcome

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError, WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.results import journal
from fcl_flower.results.record import read
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.rounds import messages
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.transport import Content
from fcl_flower.service.changes import extend
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def places_of(folder, clients):
    """Write the tasks of each client, of classes such as c0."""
    places = []
    for client, tasks in enumerate(clients):
        for number, classes in enumerate(tasks):
            task = folder / f"data-{client}" / f"task-{number + 1:02}"
            task.mkdir(parents=True)
            (task / "train.csv").write_text(table(classes, 10 * client + number))
        places.append({"data-path": str(folder / f"data-{client}")})
    return places


def growing(folder, **settings):
    usual = {"strategy": "fedavg", "model.head": "single", "places": 6}
    if "data.class_names" in settings:
        del usual["places"]
    return config(folder, **{**usual, "classes_per_task": 0, **settings})


def head_of(folder):
    state = FolderStateStore(folder / CHECKPOINT).load().state
    tensor = state["base"]["heads.0.weight"]
    assert not isinstance(tensor, SparseArray)
    return np.asarray(tensor)


def names_of(folder):
    return RunConfig.read(folder / "config.toml", "run").data.class_names


@pytest.mark.run
def test_classes_get_places_as_clients_meet_them(tmp_path):
    # Client 1 names c3 first, but the places go by ascending client.
    places = places_of(
        tmp_path, [[["c2", "c0"], ["c1", "c4"]], [["c3", "c2"], ["c0", "c1"]]]
    )
    run(growing(tmp_path / "run"), places)
    assert names_of(tmp_path / "run") == "c0,c2,c3,c1,c4"
    told = [
        (event.round, event.begun.class_names)
        for event in journal.replay(tmp_path / "run" / journal.FILE)
        if type(event).__name__ == "Extended"
    ]
    assert told == [(0, ["c0", "c2", "c3"]), (2, ["c0", "c2", "c3", "c1", "c4"])]
    assert all(not row["failed"] for row in rounds_of(tmp_path / "run"))
    assert summary_of(tmp_path / "run")["untrained_client_tasks"] == 0


SPELLED = [
    [["healthy", "Pneumonia"], ["healthy", "ill"]],
    [["pneumonia", "healthy"], ["Healthy", "1.0"]],
]


def spelled(folder):
    """Write tasks of the same corners whose classes have other names."""
    places = places_of(folder, [[["c0", "c1"]] * 2] * 2)
    for client, tasks in enumerate(SPELLED):
        for number, names in enumerate(tasks):
            path = folder / f"data-{client}" / f"task-{number + 1:02}" / "train.csv"
            text = path.read_text()
            for place, name in enumerate(names):
                text = text.replace(f"c{place}", name)
            path.write_text(text)
    return places


HOLDERS = {
    "Pneumonia": [0],
    "healthy": [0, 1],
    "ill": [0],
    "pneumonia": [1],
    "1.0": [1],
    "Healthy": [1],
}


@pytest.mark.run
def test_the_page_names_classes_of_one_client_alone_and_those_that_look_alike(
    tmp_path, caplog
):
    folder = tmp_path / "run"
    run(growing(folder, labels="keep"), spelled(tmp_path))

    assert read(folder).begun.class_holders == HOLDERS
    said = [r.getMessage() for r in caplog.records if "look alike" in r.getMessage()]
    assert said == [
        "client 1: classes 'Pneumonia' and 'pneumonia' look alike",
        "client 1: classes 'Healthy' and 'healthy' look alike",
    ]
    page = parsed(folder / "report.html")
    assert table_of(page, "class-holders") == [["1.0", "1"], ["ill", "0"]]
    said = {one for one in verdicts(page) if "look alike" in one}
    start = "Some classes look alike, yet are learned apart: "
    assert said == {
        f"{start}'Healthy' (client 1) and 'healthy' (client 0, 1).",
        f"{start}'Pneumonia' (client 0) and 'pneumonia' (client 1).",
    }


@pytest.mark.run
def test_with_secure_aggregation_nobody_is_told_who_has_which(tmp_path, caplog):
    places = places_of(tmp_path, [[["c0", "c1"]]] * 3)
    path = tmp_path / "data-2" / "task-01" / "train.csv"
    path.write_text(path.read_text().replace("c1", "C1"))
    given = {"tasks": 1, "clients": 3, "secure_aggregation": True, "labels": "keep"}
    run(growing(tmp_path / "run", **given), places)
    assert names_of(tmp_path / "run") == "c0,c1,C1"
    assert read(tmp_path / "run").begun.class_holders == {}
    assert "look alike" not in caplog.text
    assert "look alike" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.run
def test_a_place_without_a_class_stays_as_it_was(tmp_path):
    places = places_of(tmp_path, [[["c0", "c1"]], [["c1", "c2"]]])
    run(growing(tmp_path / "run", tasks=1), places)
    made = Built(resolve(growing(tmp_path / "run", tasks=1)))
    initial = made.model().heads[0].weight.detach().numpy()
    found = head_of(tmp_path / "run")
    assert found.shape == (6, initial.shape[1])
    np.testing.assert_array_equal(found[3:], initial[3:])
    assert (found[:3] != initial[:3]).any(1).all()


@pytest.mark.run
def test_a_head_whose_classes_all_come_first_is_that_of_named_classes(tmp_path):
    places = places_of(tmp_path, [[["c0", "c1"]] * 2, [["c2", "c3"], ["c1", "c2"]]])
    for name in ("grown", "named"):
        more = {"places": 4}
        if name == "named":
            more = {"data.class_names": "c0,c1,c2,c3", "classes_per_task": 4}
        run(growing(tmp_path / name, **more), places)
    states = [
        FolderStateStore(tmp_path / name / CHECKPOINT).load().state
        for name in ("grown", "named")
    ]
    assert exact(states[0]) == exact(states[1])
    accuracy = [
        summary_of(tmp_path / name)["client_accuracy"] for name in ("grown", "named")
    ]
    assert accuracy[0] == accuracy[1]


CLASSES = [
    [["c0", "c1"], ["c1", "c2"], ["c4", "c0"]],
    [["c1", "c3"], ["c0", "c5"], ["c2", "c3"]],
]


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "replay"])
def test_a_run_with_more_tasks_grows_as_one_that_was_planned_longer(tmp_path, strategy):
    places = places_of(tmp_path, CLASSES)
    shape = {"strategy": strategy, "model.head": "single", "classes_per_task": 0}
    check_extended(tmp_path, places, {"tasks": 2}, {"tasks": 3}, **shape)
    assert names_of(tmp_path / "short") == "c0,c1,c3,c2,c5,c4"


@pytest.mark.run
def test_a_run_that_was_interrupted_grows_to_the_same_head(tmp_path):
    places = places_of(tmp_path, CLASSES)
    run(growing(tmp_path / "whole"), places)
    with pytest.raises(PulledPlugError):
        run_in_process(
            growing(tmp_path / "ended"), NODES[:2], places=places, tamper=pulled_in(3)
        )
    path = tmp_path / "ended" / "config.toml"
    run(RunConfig.read(path, "run").replace(resume=True), places)
    np.testing.assert_array_equal(
        head_of(tmp_path / "ended"), head_of(tmp_path / "whole")
    )
    begun = [read(tmp_path / name).begun for name in ("ended", "whole")]
    assert [one.class_names for one in begun] == [["c0", "c1", "c3", "c2", "c5"]] * 2
    assert begun[0].class_holders == begun[1].class_holders
    assert begun[0].class_holders["c1"] == [0, 1]
    assert outcome(tmp_path / "ended") == outcome(tmp_path / "whole")


@pytest.mark.run
def test_a_client_that_joins_brings_classes_of_its_own(tmp_path):
    places = places_of(
        tmp_path, [[["c0", "c1"]] * 3, [["c1", "c2"]] * 3, [["c2", "c4"]]]
    )
    run(growing(tmp_path / "run"), places)
    run(extend(tmp_path / "run", tasks=3, clients=3), places)
    assert names_of(tmp_path / "run") == "c0,c1,c2,c4"
    accuracy = np.array(summary_of(tmp_path / "run")["client_accuracy"], float)
    assert not np.isnan(accuracy[2, 2, 2])


@pytest.mark.soak
@pytest.mark.run
@pytest.mark.parametrize(
    "strategy", ["fedweit", "icarl", "analytic", "scaffold", "ewc", "der", "podnet"]
)
def test_methods_learn_with_a_head_that_grows(tmp_path, strategy):
    places = places_of(tmp_path, CLASSES)
    shape = {"strategy": strategy, "tasks": 3, "epochs": 10, "per_class": True}
    run(growing(tmp_path / "run", **shape), places)
    summary = summary_of(tmp_path / "run")
    assert all(not row["failed"] for row in rounds_of(tmp_path / "run"))
    assert summary["learning_accuracy"] > 0.5
    known = {found["name"] for found in summary["per_class"]}
    assert known == {f"c{n}" for n in range(6)}


@pytest.mark.run
def test_more_classes_than_places_are_refused_by_client(tmp_path):
    places = places_of(tmp_path, [[["c0", "c1"]], [["c2", "c3"]]])
    run(growing(tmp_path / "run", tasks=1, places=3), places)
    reasons = {row["reasons"]["1"] for row in rounds_of(tmp_path / "run")}
    assert "classes: 4 of the federation, expected at most the 3 of model.places" in (
        reasons
    )


@pytest.mark.run
@pytest.mark.parametrize(
    ("rule", "names", "failed"),
    [
        ("refuse", "c0,c1,c2", [1]),
        ("merge", "c0,c1,c2", []),
        ("keep", "c0,c1,C0,c2", []),
    ],
)
def test_classes_of_two_clients_that_look_alike(tmp_path, rule, names, failed):
    places = places_of(tmp_path, [[["c0", "c1"], ["c2"]], [["C0", "c1"], ["c2"]]])
    run(growing(tmp_path / "run", **{"data.labels": rule}), places)
    assert names_of(tmp_path / "run") == names
    rows = rounds_of(tmp_path / "run")
    assert rows[0]["failed"] == failed
    # Merged names are held as the head spells them.
    both = rule == "merge"
    assert (read(tmp_path / "run").begun.class_holders["c0"] == [0, 1]) == both
    if failed:
        said = "classes: got 'C0', which looks like 'c0', expected one spelling"
        assert said in rows[0]["reasons"]["1"]


@pytest.mark.run
def test_clients_without_a_task_are_asked_again(tmp_path):
    places = places_of(tmp_path, [[["c0", "c1"]] * 2, [["c2", "c3"]]])

    def finished(who, request, reply):
        late = tmp_path / "data-1" / "task-02"
        if request.kind == "train" and not late.exists():
            asked = messages.decode_request(request.content).stage
            if asked.round == 3 and who == 0:
                late.mkdir()
                (late / "train.csv").write_text(table(["c4", "c5"], 7))
        return reply

    run_in_process(growing(tmp_path / "run"), NODES[:2], places=places, tamper=finished)
    assert names_of(tmp_path / "run") == "c0,c1,c2,c3,c4,c5"
    assert [row["failed"] for row in rounds_of(tmp_path / "run")] == [[], [], [1], []]


@pytest.mark.parametrize(
    "names", [["a,b"], [" a"], [""], ["a\x1b"], ["a" * 201], "ab", [1], ["a"] * 5000]
)
def test_names_that_cannot_be_listed_are_refused(names):
    content = Content(scalars={"classes": {"names": names}})
    with pytest.raises(WireError, match="classes/names: expected names"):
        messages.class_names(content)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"asynchronous": True},
            r"data\.class_names: got '', expected the names of all",
        ),
        (
            {"privacy": {"unit": "client", "noise_multiplier": 1.0}},
            r"data\.class_names: got '', .* with privacy\.unit 'client'",
        ),
        ({"data.class_names": "a,a"}, r"data\.class_names: got 'a,a', expected differ"),
        ({"data.class_names": "a"}, r"data\.class_names: got 'a', expected different"),
    ],
)
def test_what_a_growing_head_cannot_do_is_refused(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        resolve(growing(tmp_path / "run", **settings))


@pytest.mark.run
def test_all_clients_without_a_place_end_the_run(tmp_path):
    places = places_of(tmp_path, [[["c0", "c1", "c2"]], [["c3", "c4", "c5"]]])
    with pytest.raises(RoundError, match=r"at most the 2 of model\.places"):
        run(growing(tmp_path / "run", tasks=1, places=2), places)
