"""Which adapters of other clients a client receives, by every policy, by hand."""

import numpy as np
import pytest
from fakes import run_in_process, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from fcl_flower.federation import messages
from fcl_flower.federation.codec import WireFormat
from strategies.fedweit import FedWeitParams
from strategies.fedweit.maths import (
    Adapter,
    centred,
    chosen,
    most_similar,
    similarity,
    uploaded_groups,
)
from strategies.fedweit.server import FedWeit

W = "body.conv.weight"
WIDTH = 2
# Directions of length 1; the cosine of two is that of the angle between them.
ANGLE = {"east": 0.0, "north-east": np.pi / 4, "north": np.pi / 2, "west": np.pi}


def server(knowledge="sit:1", seed=3, **params):
    return FedWeit(FedWeitParams(knowledge=knowledge, **params), ServerContext(seed))


def start(strategy):
    return strategy.init({W: np.ones((3, WIDTH, 4), np.float32)})


def stage(number, task, starts_task=True, ends_task=True):
    return TaskStage(
        round=number, task=task, starts_task=starts_task, ends_task=ends_task
    )


def vector(where):
    return np.float32([np.cos(ANGLE[where]), np.sin(ANGLE[where])])


def told(where):
    """Return the answer of a client; none where it has nothing to tell."""
    return {"summary": {"mean": vector(where)}} if where else {}


def finished(strategy, state, number, task, clients):
    adapter = SparseArray.of_nonzero(np.ones((3, WIDTH, 4), np.float32))
    update = Update({"base": {}, "adapters": {W: adapter}}, 1)
    return strategy.aggregate_train(
        state, stage(number, task), dict.fromkeys(clients, update)
    )


def lived(strategy, *tasks):
    """Return the state after tasks, each a mapping of client to what it tells."""
    state = start(strategy)
    for task, answers in enumerate(tasks):
        if strategy.configure_query(state, stage(task + 1, task), 0) is not None:
            heard = {c: told(where) for c, where in answers.items() if where != "lost"}
            state = strategy.aggregate_query(state, stage(task + 1, task), heard)
        state = finished(strategy, state, task + 1, task, answers)
    return state


def begun(strategy, state, task, number=9, **answers):
    """Return the state after the query of a new task."""
    heard = {int(name[1:]): told(where) for name, where in answers.items()}
    return strategy.aggregate_query(state, stage(number, task), heard)


def received(strategy, state, client, task):
    payload = strategy.configure_train(state, stage(9, task), client)
    return [group for group in payload if group != "base"]


# ---- policies that look at nothing but who and when

WHO = [Adapter(0, 0), Adapter(0, 1), Adapter(2, 0), Adapter(2, 1), Adapter(10, 0)]


@pytest.mark.parametrize(
    ("knowledge", "expected"),
    [
        ("previous", [Adapter(0, 1), Adapter(2, 1), Adapter(10, 0)]),
        ("all", WHO),
        ("sample:5", WHO),
        ("sample:99", WHO),
        ("none", []),
    ],
)
def test_who_is_chosen_by_who_and_when(knowledge, expected):
    assert chosen(knowledge, WHO, Adapter(1, 2), seed=0) == expected


def test_a_sample_has_no_repetition_and_meets_everyone_in_the_end():
    drawn = [chosen("sample:2", WHO, Adapter(1, 2), seed) for seed in range(40)]
    for sample in drawn:
        assert len(set(sample)) == 2
        assert sample == sorted(sample)
        assert set(sample) <= set(WHO)
    assert {adapter for sample in drawn for adapter in sample} == set(WHO)


def test_adapters_are_listed_by_number_of_client_and_task():
    groups = ["base", "adapters/10/0", "adapters/2/11", "adapters/2/3", "masks/0/0"]
    assert uploaded_groups({group: {} for group in groups}) == [
        Adapter(2, 3),
        Adapter(2, 11),
        Adapter(10, 0),
    ]


@pytest.mark.parametrize("knowledge", ["previous", "all", "sample:9", "sit:9"])
def test_a_slow_client_gets_what_faster_ones_have_finished(knowledge):
    strategy = server(knowledge)
    everyone = dict.fromkeys(range(3), "east")
    state = lived(strategy, everyone, everyone)
    tasks = [1] if knowledge == "previous" else [0, 1]
    for client in range(3):
        # Itself it has finished none.
        kept = {
            g: a for g, a in state.items() if not g.startswith(f"adapters/{client}")
        }
        now = begun(strategy, kept, 0, **{f"c{client}": "east"})
        others = [f"adapters/{c}/{t}" for c in range(3) if c != client for t in tasks]
        assert received(strategy, now, client, 0) == others


def test_who_goes_on_with_a_hidden_task_is_not_asked_again():
    strategy = server("sit:3")
    state = lived(strategy, dict.fromkeys(range(3), "east"))
    assert strategy.configure_query(state, stage(2, 0), 0) is None
    assert strategy.configure_query(state, stage(2, 1), 0) == {}
    lost = strategy.on_state_lost(state, 0)
    assert strategy.configure_query(lost, stage(2, 0), 0) == {}


# ---- selective inter-client transfer


def test_sit_sends_the_most_similar_of_the_whole_history_of_others():
    strategy = server("sit:2")
    state = lived(
        strategy,
        {0: "north", 1: "east", 2: "west"},
        {0: "west", 1: "east", 2: "north-east"},
        {0: "west", 1: "east", 2: "west"},
    )
    state = begun(strategy, state, 3, c1="east")
    # Cosines: 0/0 0, 2/1 0.707, the others -1; its own tasks are the same as the new.
    assert received(strategy, state, 1, 3) == ["adapters/0/0", "adapters/2/1"]
    assert received(server("sit:1"), state, 1, 3) == ["adapters/2/1"]
    assert received(server("sit:99"), state, 1, 3) == [
        f"adapters/{client}/{task}" for client in (0, 2) for task in range(3)
    ]


def test_ties_go_to_the_lower_client_and_then_to_the_lower_task():
    scores = [(Adapter(c, t), 0.5) for c, t in ((10, 0), (2, 11), (2, 3), (9, 0))]
    for turned in (scores, scores[::-1]):
        assert most_similar(turned, 1) == [Adapter(2, 3)]
        assert most_similar(turned, 3) == [Adapter(2, 3), Adapter(2, 11), Adapter(9, 0)]
    better = [*scores, (Adapter(11, 0), 0.6)]
    assert most_similar(better, 2) == [Adapter(2, 3), Adapter(11, 0)]


def test_tasks_without_a_summary_are_not_chosen():
    strategy = server("sit:9")
    state = lived(strategy, {0: "", 1: "east", 2: "west", 3: "lost"})
    state = begun(strategy, state, 1, c1="east")
    assert received(strategy, state, 1, 1) == ["adapters/2/0"]


def test_tasks_without_an_adapter_are_not_chosen():
    strategy = server("sit:9")
    state = lived(strategy, {0: "east"})
    state = begun(strategy, state, 0, c2="east")
    state = begun(strategy, state, 1, c1="east")
    assert received(strategy, state, 1, 1) == ["adapters/0/0"]


def test_a_client_that_tells_nothing_gets_no_adapter():
    strategy = server("sit:9")
    state = lived(strategy, {0: "east", 1: "east", 2: "east"})
    state = begun(strategy, state, 1, c0="east", c1="")
    assert received(strategy, state, 0, 1) == ["adapters/1/0", "adapters/2/0"]
    assert received(strategy, state, 1, 1) == [], "withheld"
    assert received(strategy, state, 2, 1) == [], "failed"


def test_a_query_is_made_at_the_start_of_a_task_and_with_sit_only():
    state = start(server())
    assert server().configure_query(state, stage(1, 0), 0) == {}
    assert server().configure_query(state, stage(2, 0, starts_task=False), 0) is None
    for knowledge in ("previous", "all", "none", "sample:2"):
        assert server(knowledge).configure_query(state, stage(1, 0), 0) is None


def overlaps(strategy, state, now):
    """Flatten the scores of the tasks begun in a round."""
    found = strategy.diagnostics(state, now, {})
    if "overlap" not in found:
        assert found == {}
        return {}
    return {
        f"overlap/{task}/{other}": score
        for task, scores in found["overlap"].values.items()
        for other, score in scores.items()
    }


def test_insights_are_the_scores_of_the_tasks_begun_in_this_round():
    strategy = server("sit:1", overlap="mean-cosine")
    state = lived(strategy, {0: "east", 1: "north", 2: ""})
    # Round 5: clients 0 and 1 begin. Round 6: client 2 does, and nobody in round 7.
    state = begun(strategy, state, 1, number=5, c0="east", c1="north-east")
    found = overlaps(strategy, state, stage(5, 1))
    assert found.keys() == {"overlap/0/1/1/0", "overlap/1/1/0/0"}
    assert found["overlap/0/1/1/0"] == pytest.approx(0, abs=1e-7)
    assert found["overlap/1/1/0/0"] == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert all(type(score) is float for score in found.values())
    state = finished(strategy, state, 5, 1, [0, 1])
    state = begun(strategy, state, 1, number=6, c2="west")
    found = overlaps(strategy, state, stage(6, 1))
    assert found == {
        "overlap/2/1/0/0": pytest.approx(-1),
        "overlap/2/1/0/1": pytest.approx(-1),
        "overlap/2/1/1/0": pytest.approx(0, abs=1e-6),
        "overlap/2/1/1/1": pytest.approx(-np.sqrt(0.5), abs=1e-6),
    }
    state = finished(strategy, state, 6, 1, [0, 1, 2])
    assert overlaps(strategy, state, stage(7, 1)) == {}
    # What a later task tells does not come with what an earlier one did.
    state = begun(strategy, state, 2, number=8, c0="east")
    assert {name.split("/")[1] for name in overlaps(strategy, state, stage(8, 2))} == {
        "0"
    }
    # Two that begin in one round may be at different tasks.
    state = begun(strategy, state, 3, number=10, c0="east")
    state = begun(strategy, state, 2, number=10, c1="east")
    found = overlaps(strategy, state, stage(10, 0))
    assert {tuple(name.split("/")[1:3]) for name in found} == {("0", "3"), ("1", "2")}
    nobody = begun(strategy, state, 2, number=9)
    assert overlaps(strategy, nobody, stage(9, 2)) == {}
    assert overlaps(server("all"), start(server("all")), stage(1, 0)) == {}


# ---- how alike two tasks are


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True)) / (
        np.sqrt(sum(a * a for a in one)) * np.sqrt(sum(b * b for b in other))
    )


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    counts=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    width=st.integers(1, 12),
    threshold=st.floats(-1, 1),
)
def test_a_score_is_a_mean_over_all_pairs_of_centres(seed, counts, width, threshold):
    rng = np.random.default_rng(seed)
    one, other = (rng.normal(size=(count, width)) for count in counts)
    pairs = [cosine(a, b) for a in one.tolist() for b in other.tolist()]
    means = [unit(rows).mean(0).astype(np.float32) for rows in (one, other)]
    found = similarity("mean-cosine", *means, threshold)
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-5)
    centres = [unit(rows).astype(np.float32) for rows in (one, other)]
    if min(abs(pair - threshold) for pair in pairs) > 1e-6:
        kept = [pair for pair in pairs if pair > threshold]
        assert similarity("thresholded", *centres, threshold) == pytest.approx(
            sum(kept) / len(pairs), abs=1e-5
        )


def test_a_cosine_up_to_the_threshold_counts_as_0():
    one = np.stack([vector("east"), vector("north")])
    other = np.stack([vector("north-east"), vector("west"), vector("east")])
    # Cosines: 0.707, -1, 1 of east; 0.707, 0, 0 of north.
    for threshold, total in (
        (0.7, 1 + np.sqrt(2)),
        (0.71, 1),
        (1, 0),
        (-1, np.sqrt(2) + 1),
    ):
        found = similarity("thresholded", one, other, threshold)
        assert found == pytest.approx(total / 6, abs=1e-6)


def test_tasks_are_compared_by_how_they_differ_from_the_mean_of_all():
    """All vectors point east by and large; north or south is what differs."""
    strategy = server("sit:1")
    told = {"a": [0.8, 0.2], "b": [0.8, -0.1], "c": [0.9, -0.1], "new": [0.7, 0.1]}

    def answer(name):
        return {"summary": {"mean": np.float32(told[name])}}

    heard = {0: answer("a"), 2: answer("b"), 3: answer("c")}
    state = strategy.aggregate_query(start(strategy), stage(1, 0), heard)
    state = finished(strategy, state, 1, 0, [0, 2, 3])
    state = strategy.aggregate_query(state, stage(2, 1), {1: answer("new")})
    # The mean is (0.8, 0.025), of the new task too.
    away = {name: [x - 0.8, y - 0.025] for name, (x, y) in told.items()}
    assert overlaps(strategy, state, stage(2, 1)) == {
        f"overlap/1/1/{client}/0": pytest.approx(cosine(away["new"], away[name]), 1e-5)
        for client, name in ((0, "a"), (2, "b"), (3, "c"))
    }
    assert received(strategy, state, 1, 1) == ["adapters/0/0"]
    printed = server("sit:1", overlap="mean-cosine")
    state = printed.aggregate_query(state, stage(2, 1), {1: answer("new")})
    assert received(printed, state, 1, 1) == ["adapters/3/0"]


def test_of_equal_tasks_none_is_more_similar():
    assert not centred(np.float32([[0.3, 0.4]] * 3)).any()


def test_the_server_scores_centres_by_its_threshold():
    strategy = server("sit:1", overlap="thresholded", overlap_threshold=0.9)
    state = start(strategy)

    def centres(*names):
        return {"summary": {"centres": np.stack([vector(name) for name in names])}}

    heard = {0: centres("east", "west"), 2: centres("north-east", "north-east")}
    state = strategy.aggregate_query(state, stage(1, 0), heard)
    state = finished(strategy, state, 1, 0, [0, 2])
    state = strategy.aggregate_query(state, stage(2, 1), {1: centres("east")})
    assert overlaps(strategy, state, stage(2, 1)) == {
        "overlap/1/1/0/0": pytest.approx(0.5),
        "overlap/1/1/2/0": 0,
    }
    assert received(strategy, state, 1, 1) == ["adapters/0/0"]


# ---- what clients may answer

LONG = np.float32([1, 0.2])
GOOD = {
    "centred-cosine": vector("north"),
    "mean-cosine": vector("north-east"),
    "thresholded": np.tile(vector("west"), (3, 1)),
}
NAME = {"centred-cosine": "mean", "mean-cosine": "mean", "thresholded": "centres"}


def hostile(kind):
    good, name = GOOD[kind], NAME[kind]
    other = "mean" if name == "centres" else "centres"
    yield "another group", {"adapters/0/0": {name: good}}
    yield "one more group", {"summary": {name: good}, "base": {}}
    yield "no name", {"summary": {}}
    yield "another name", {"summary": {other: good}}
    yield "one more name", {"summary": {name: good, "more": good}}
    yield "sparse", {"summary": {name: SparseArray.of_nonzero(good)}}
    for dtype in (np.float64, np.float16, np.int64, np.bool_):
        yield dtype.__name__, {"summary": {name: good.astype(dtype)}}
    shapes = {
        "wider": good.repeat(2, axis=-1),
        "narrower": good[..., :1],
        "one axis more": good[None],
        "two axes more": good[None, None],
        "no axes": np.float32(0.5).reshape(()),
        "nothing": good[..., :0],
        "the other shape": GOOD[
            "mean-cosine" if kind == "thresholded" else "thresholded"
        ],
        "longer than 1": good * 0 + LONG,
        "squares beyond a float32": good * np.float32(1e30),
    }
    if kind == "thresholded":
        shapes["no rows"] = good[:0]
        shapes["too many rows"] = np.zeros((201, WIDTH), np.float32)
        shapes["one of them longer"] = np.stack([good[0], LONG])
    for what, values in shapes.items():
        yield what, {"summary": {name: values}}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        pytest.param(kind, answer, id=f"{kind}: {what}")
        for kind in GOOD
        for what, answer in hostile(kind)
    ],
)
def test_an_answer_that_is_no_summary_is_refused(kind, answer):
    strategy = server(overlap=kind)
    with pytest.raises(WireError, match=r"^(query|summary/)"):
        strategy.check_query_reply(start(strategy), answer)


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_summary_is_accepted_and_so_is_a_withheld_one(kind):
    strategy = server(overlap=kind)
    state, name = start(strategy), NAME[kind]
    for values in (GOOD[kind], GOOD[kind] * 0):
        strategy.check_query_reply(state, {"summary": {name: values}})
    strategy.check_query_reply(state, {})
    assert not strategy.aggregate_query(state, stage(1, 0), {0: {}}).keys() & {
        "summaries/0/0",
        "meta/overlap/0/0",
    }


def test_as_many_centres_as_allowed_are_accepted():
    strategy = server(overlap="thresholded")
    rows = np.zeros((200, WIDTH), np.float32)
    strategy.check_query_reply(start(strategy), {"summary": {"centres": rows}})


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_vector_of_length_1_survives_any_precision_of_the_wire(precision):
    strategy = server(overlap="thresholded")
    angles = np.linspace(0, 2 * np.pi, 200)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    records = messages.MessageEncoder(WireFormat(precision)).payload(
        {"summary": {"centres": rows}}
    )
    strategy.check_query_reply(start(strategy), messages.decode_payload(records))


# ---- what a user may ask for


@pytest.mark.parametrize("strategy", ["fedweit", "fedseit"])
@pytest.mark.parametrize(
    "value",
    [
        "",
        "sit",
        "sit:",
        "sit:0",
        "sit:-1",
        "sit:x",
        "sit:1.5",
        "sit:1:2",
        "sit:²",
        "Sit:1",
        " sit:1",
        "sample:0",
        "sample",
        "previous:1",
        "none:1",
    ],
)
def test_what_is_no_policy_is_refused_with_one_sentence(strategy, value):
    with pytest.raises(
        ConfigError, match=r"strategy.knowledge: got .* 'sit:K' with K above 0"
    ):
        algorithm(strategy).params({"knowledge": value})


@pytest.mark.parametrize("value", ["sit:1", "sit:25", "sample:7", "previous", "all"])
def test_a_valid_policy_is_kept(value):
    assert algorithm("fedseit").params({"knowledge": value}).knowledge == value


def test_sit_is_refused_for_images(tmp_path):
    config = tiny(
        tmp_path, strategy="fedweit", **{"strategy.params": 'knowledge = "sit:2"'}
    )
    with pytest.raises(ConfigError, match=r"strategy\.knowledge: got 'sit:2', exp"):
        run_in_process(config)
    for shape in ((3, 2), (3, 2, 4, 4)):
        with pytest.raises(ConfigError, match="is no network over word vectors"):
            server("sit:2").init({W: np.ones(shape, np.float32)})
