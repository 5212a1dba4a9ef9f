"""Domains: data sets with the same classes, in the orders that clients meet them."""

import numpy as np
import pytest
from fakes import run_in_process, summary_of, tiny
from plans import NOWHERE, TURNED, all_tasks, draw, images_in_turn, learned

import fcl_flower as fcl
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.registry import load_dataset
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

FIRST, SECOND, THIRD, FOURTH = TURNED


def met(**changes):
    plan = draw("domains", **changes)
    return [[task.dataset for task in stream] for stream in plan.clients]


def test_all_clients_meet_the_domains_in_the_given_order():
    assert met(clients=2, tasks=3) == [[FIRST, SECOND, THIRD]] * 2


def test_rotated_each_client_begins_with_another_domain():
    assert met(order="rotated", clients=5, tasks=2) == [
        [FIRST, SECOND],
        [SECOND, THIRD],
        [THIRD, FOURTH],
        [FOURTH, FIRST],
        [FIRST, SECOND],
    ]


def test_at_random_each_client_has_an_order_of_its_own():
    orders = met(order="random", clients=6)
    assert all(sorted(order) == sorted(TURNED) for order in orders)
    assert len(set(map(tuple, orders))) > 2
    assert orders != met(order="random", clients=6, seed=8)


@pytest.mark.parametrize("order", ["same", "rotated", "random"])
def test_clients_share_out_a_domain_and_test_all_of_it(order):
    plan = draw("domains", order=order, clients=3, tasks=3)
    source = load_dataset(FIRST, NOWHERE)
    for name in {task.dataset for task in all_tasks(plan)}:
        sharers = [task for task in all_tasks(plan) if task.dataset == name]
        samples = [index for task in sharers for index in learned(task)]
        assert sorted(samples) == list(range(len(source.train.y)))
        counts = [np.bincount(source.train.y[learned(task)]) for task in sharers]
        assert np.ptp(counts, axis=0).max() <= 1
        for task in sharers:
            assert task.test.tolist() == list(range(len(source.test.y)))
    assert plan.classes_per_task == plan.num_labels == 10


@pytest.mark.parametrize("order", ["same", "rotated"])
def test_skewed_shares_are_of_all_samples_and_of_unlike_sizes(order):
    plan = draw("domains", split="dirichlet:0.3", order=order, clients=3, tasks=3)
    source = load_dataset(FIRST, NOWHERE)
    spreads = []
    for name in {task.dataset for task in all_tasks(plan)}:
        sharers = [task for task in all_tasks(plan) if task.dataset == name]
        samples = [index for task in sharers for index in learned(task)]
        assert sorted(samples) == list(range(len(source.train.y)))
        counts = [
            np.bincount(source.train.y[learned(task)], minlength=10) for task in sharers
        ]
        spreads.append(np.ptp(counts, axis=0).max())
    assert min(spreads) > 30
    # Each domain has a draw of its own, which follows from the seed.
    assert len(set(spreads)) > 1
    again = draw("domains", split="dirichlet:0.3", order=order, clients=3, tasks=3)
    assert [t.train.tolist() for t in all_tasks(again)] == [
        t.train.tolist() for t in all_tasks(plan)
    ]


def test_a_class_is_the_same_whatever_its_number_in_a_domain(tmp_path):
    images_in_turn(tmp_path, "photos", 3, names=["cat", "dog", "elk"])
    images_in_turn(tmp_path, "sketches", 3, names=["elk", "cat", "dog"], first=100)
    settings = {"datasets": ["photos", "sketches"], "clients": 1, "tasks": 2}
    plan = draw("domains", tmp_path, **settings)
    assert plan.class_names == {0: "cat", 1: "dog", 2: "elk"}
    assert [plan.label_index("photos", label) for label in range(3)] == [0, 1, 2]
    assert [plan.label_index("sketches", label) for label in range(3)] == [2, 0, 1]


def test_held_out_domains_have_the_same_classes():
    plan = draw("domains", datasets=[f"held-out:{name}" for name in TURNED])
    assert plan.num_labels == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": 5}, "tasks: got 5, expected at most 4, one for each data set"),
        (
            {"classes_per_task": 5},
            "classes_per_task: got 5, expected none, since each domain has all classes",
        ),
        (
            {"datasets": ["digits", "letters"], "tasks": 2},
            "datasets: got ['digits', 'letters'], expected the same classes, but one "
            "alone has '6'",
        ),
    ],
    ids=["tasks", "classes", "others"],
)
def test_what_is_no_domain_is_refused(tmp_path, changes, message):
    images_in_turn(tmp_path, "letters", 6)
    with pytest.raises(ConfigError) as refused:
        draw("domains", tmp_path, **changes)
    assert message in str(refused.value)


def test_a_share_that_is_no_rule_is_refused():
    settings = {"dataset": ",".join(TURNED), "clients": 3, "strategy": "fedavg"}
    config = RunConfig.from_settings(
        scenario="domains", **settings, **{"scenario.split": "classes"}
    )
    sentence = "scenario.split: got 'classes'.*'iid' or 'dirichlet:BETA' with BETA"
    with pytest.raises(ConfigError, match=sentence):
        Built(resolve(config))


def test_a_task_that_is_unknown_restricts_no_label():
    settings = {"scenario": "domains", "dataset": ",".join(TURNED), "mask_logits": True}
    with pytest.raises(ConfigError, match="in which the task of a test is not known"):
        Built(resolve(RunConfig.from_settings(**settings)))


@pytest.mark.soak
@pytest.mark.run
def test_replay_remembers_the_first_domain(tmp_path):
    """One head learns the digits turned by 90 degrees and forgets the upright ones."""
    settings = {
        "scenario": "domains",
        "dataset": f"{FIRST},{SECOND}",
        "model": "small",
        "classes_per_task": 0,
        "rounds": 6,
        "learning_rate": 0.003,
    }
    accuracy = {}
    for strategy in ("fedavg", "replay"):
        folder = tmp_path / strategy
        run_in_process(tiny(folder, strategy=strategy, **settings))
        accuracy[strategy] = summary_of(folder)["accuracy_matrix"][-1]
    assert accuracy["replay"][0] > accuracy["fedavg"][0] + 0.1
    assert min(accuracy["replay"]) > 0.5


@pytest.mark.run
def test_a_class_that_the_network_of_another_domain_finds_is_right(tmp_path):
    result = fcl.simulate(
        "stl",
        scenario="domains",
        dataset=f"{FIRST},{SECOND}",
        model="small",
        clients=2,
        tasks=2,
        rounds=3,
        output=tmp_path / "run",
    )
    right = []
    for client in range(2):
        model = fcl.load(tmp_path / "run", client=client)
        for task in model.run.scenario.clients[client]:
            test = model.run.scenario.sources[task.dataset].test
            answers = model.predict(test.x[task.test], "auto")
            names = [str(label) for label in test.y[task.test]]
            pairs = zip(answers, names, strict=True)
            right.append(np.mean([one.name == name for one, name in pairs]))
    inferred = result.summary["inferred_task_accuracy"]
    assert inferred == pytest.approx(np.mean(right))
    assert 0.3 < inferred < 1
