"""Selective Inter-client Transfer: what clients tell, who is chosen, what it gains.

Chaudhary et al., Findings of EMNLP 2022, section 2.3.
"""

import numpy as np
import pytest
import torch
from fakes import run_in_process, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.fedseit import FedSeit as FedSeitLearner
from clients.fedweit.client import FedWeit as FedWeitLearner
from clients.fedweit.maths import centres
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import WireFormat
from fcl_flower.training.loop import Training, score
from fcl_flower.training.tensors import snapshot
from strategies.fedseit import FedSeit, FedSeitParams
from strategies.fedweit import FedWeit, FedWeitParams
from strategies.fedweit.maths import centred, most_similar, similarity

KINDS = pytest.mark.parametrize("kind", ["k-means", "gaussian-mixture"])
W = "body.conv.weight"
WIDTH = 2
# Directions of length 1; the cosine of two is that of the angle between them.
ANGLE = {"east": 0.0, "north-east": np.pi / 4, "north": np.pi / 2, "west": np.pi}


def stage(number, task, starts_task=True, ends_task=True):
    return TaskStage(number, task, starts_task, ends_task)


def unit(rows):
    lengths = np.sqrt((rows**2).sum(1, keepdims=True))
    return rows / lengths


# ---- what a client tells: centres that stand for several documents each


def blobs(sizes, dimensions=6, noise=0.02, seed=0):
    """Draw documents around far points on the axes, and the blob of each."""
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    points = 3 * np.eye(dimensions)[which]
    documents = points + noise * rng.normal(size=points.shape)
    return documents.astype(np.float32), which


@KINDS
def test_each_large_blob_has_its_centre_and_a_small_one_goes_to_the_nearest(kind):
    documents, which = blobs([12, 9, 9, 2])
    # Nearer to the second blob than to the others.
    documents[which == 3] += np.float32([0, 1.5, 0, 0, 0, 0])
    which[which == 3] = 1
    found = centres(documents, 4, kind, 5, seed=1)
    assert found.dtype == np.float32
    assert found.shape == (3, 6)
    by_hand = unit(np.stack([documents[which == blob].mean(0) for blob in range(3)]))
    order = found[:, :3].argmax(1).argsort()
    np.testing.assert_allclose(found[order], by_hand, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "count", "members", "expected"),
    [
        ([5] * 4, 200, 5, 4),
        ([5] * 4, 2, 5, 2),
        ([9], 1, 1, 1),
        ([4], 3, 5, 0),
        ([4], 3, 4, 1),
        ([0], 3, 1, 0),
    ],
)
def test_there_are_q_centres_or_as_many_as_the_documents_suffice_for(
    sizes, count, members, expected
):
    documents, _ = blobs(sizes)
    found = centres(documents, count, "k-means", members, seed=0)
    assert found.shape == (expected, 6)


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_no_centre_stands_for_fewer_documents_than_members(kind, seed):
    """Each axis is a blob, so that a centre's mixture says whom it stands for."""
    sizes = np.random.default_rng(seed).integers(1, 12, size=8)
    documents, _ = blobs(sizes, dimensions=8)
    found = centres(documents, 200, kind, 5, seed)
    assert 1 <= len(found) <= sum(sizes) // 5
    assert ((found > 0.02) @ sizes).min() >= 5
    assert np.abs(found[:, None] - unit(documents)).max(2).min() > 1e-5, "a document"


@KINDS
def test_copies_of_a_document_count_once_and_do_not_warn(kind):
    documents, _ = blobs([4, 6])
    many = np.repeat(documents, [30, 1, 1, 1, 5, 1, 1, 1, 1, 1], axis=0)
    np.testing.assert_array_equal(
        centres(many, 2, kind, 4, seed=0), centres(documents, 2, kind, 4, seed=0)
    )
    assert len(centres(np.repeat(documents[:1], 50, axis=0), 2, kind, 2, seed=0)) == 0
    # Equal but for the last digit, as the same words in another order.
    close = np.float32([[1, 1], [1, 1], [1e-30, 0], [2e-30, 0]]).repeat(3, axis=0)
    assert len(centres(close, 200, kind, 1, seed=0)) > 0
    opposite = np.float32([[1, 2], [-1, -2]])
    assert centres(opposite, 1, kind, 2, seed=0).tolist() == [[0, 0]]


@KINDS
def test_the_seed_alone_decides_and_the_order_of_documents_does_not(kind):
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(80, 5)).astype(np.float32)
    first = centres(documents, 10, kind, 2, 2**62 + 3)
    again = centres(rng.permutation(documents), 10, kind, 2, 2**62 + 3)
    np.testing.assert_array_equal(again, first)
    others = [centres(documents, 10, kind, 2, seed) for seed in range(3)]
    assert any(not np.array_equal(other, first) for other in others)


TABLE = np.random.default_rng(3).normal(size=(31, 4)).astype(np.float32)
TABLE[0] = 0


def task_of(count):
    rng = np.random.default_rng(0)
    x = rng.integers(1, len(TABLE), size=(count, 7))
    x[::2, 4:] = 0  # half of the documents are shorter
    train = Examples(torch.from_numpy(x), torch.zeros(count, dtype=torch.int64))
    valid, test = (Examples(train.x[:1] * 0 + n, train.y[:1]) for n in (1, 2))
    return TaskData(train, valid, test, 2)


def answer(data, number=1, task=0, client=0, seed=9, **params):
    model = create_model(
        "kim-cnn", tasks=2, classes=2, single_head=False, seed=0, table=TABLE
    )
    place = ClientContext(client, seed, Training(1, 8, 1e-3))
    params = FedWeitParams(**{"knowledge": "sit:1", **params})
    asked = FedWeitLearner(params, model, place)
    now = stage(number, task, ends_task=False)
    return asked.answer_query(Turn(asked.init(), {}, now, data))


def test_the_answer_is_the_mean_of_the_centres_or_all_of_them():
    shape = {"clusters": 6, "members": 3}
    mean = answer(task_of(40), **shape)["summary"]["mean"]
    found = answer(task_of(40), overlap="thresholded", **shape)["summary"]["centres"]
    assert 1 < len(found) <= 6
    np.testing.assert_allclose(np.sqrt((found**2).sum(1)), 1, atol=1e-6)
    by_hand = [sum(row[n] for row in found.tolist()) / len(found) for n in range(4)]
    np.testing.assert_allclose(mean, by_hand, atol=1e-6)
    assert answer(task_of(4)) == {}, "members is 5 unless told otherwise"
    assert answer(task_of(5)) != {}


def test_a_document_is_the_mean_of_its_words_without_padding():
    data = task_of(3)
    mean = answer(data, clusters=1, members=3)["summary"]["mean"]
    documents = []
    for row in data.train.x.tolist():
        words = [n for n in row if n]
        documents.append(sum(TABLE[n].astype(np.float64) for n in words) / len(words))
    by_hand = np.mean(documents, axis=0)
    np.testing.assert_allclose(mean, by_hand / np.linalg.norm(by_hand), atol=1e-6)


def test_the_answer_depends_on_nothing_but_documents_seed_client_and_task():
    def mean(**place):
        found = answer(task_of(60), clusters=12, members=2, **place)
        return tuple(found["summary"]["mean"].tolist())

    places = ({}, {"seed": 1}, {"client": 1}, {"task": 1})
    assert len({mean(**place) for place in places}) == 4
    assert mean(number=4) == mean()


# ---- how alike two tasks are


def cosine(one, other):
    return np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    counts=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    width=st.integers(1, 12),
    threshold=st.floats(-1, 1),
)
def test_a_score_is_a_mean_over_all_pairs_of_centres(seed, counts, width, threshold):
    rng = np.random.default_rng(seed)
    one, other = (rng.normal(size=(count, width)) for count in counts)
    pairs = [cosine(a, b) for a in one for b in other]
    means = [unit(rows).mean(0).astype(np.float32) for rows in (one, other)]
    found = similarity("mean-cosine", *means, threshold)
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-5)
    rows = [unit(rows).astype(np.float32) for rows in (one, other)]
    if min(abs(pair - threshold) for pair in pairs) > 1e-6:
        kept = [pair for pair in pairs if pair > threshold]
        assert similarity("thresholded", *rows, threshold) == pytest.approx(
            sum(kept) / len(pairs), abs=1e-5
        )


def test_of_equal_tasks_none_is_more_similar():
    assert not centred(np.float32([[0.3, 0.4]] * 3)).any()


def test_ties_go_to_the_lower_client_and_then_to_the_lower_task():
    scores = dict.fromkeys(("10/0", "2/11", "2/3", "9/0"), 0.5)
    assert most_similar(scores, 3) == ["2/3", "2/11", "9/0"]
    assert most_similar({**scores, "11/0": 0.6}, 2) == ["2/3", "11/0"]


# ---- who is chosen


def server(knowledge="sit:1", **params):
    return FedWeit(FedWeitParams(knowledge=knowledge, **params), ServerContext(3))


def start(strategy):
    return strategy.init({W: np.ones((3, WIDTH, 4), np.float32)})


def vector(where):
    return np.float32([np.cos(ANGLE[where]), np.sin(ANGLE[where])])


def told(where):
    return {"summary": {"mean": vector(where)}} if where else {}


def begun(strategy, state, task, number=9, **answers):
    """Ask at the beginning of a task: ``c1="east"``; "" withholds."""
    heard = {int(name[1:]): told(where) for name, where in answers.items()}
    return strategy.aggregate_query(state, stage(number, task), heard)


def finished(strategy, state, task, clients):
    adapter = SparseArray.of_nonzero(np.ones((3, WIDTH, 4), np.float32))
    update = Update({"base": {}, "adapters": {W: adapter}}, 1)
    now = stage(task + 1, task)
    return strategy.combine(state, now, dict.fromkeys(clients, update))


def lived(strategy, *tasks):
    """Live through tasks, each a mapping of client to what it tells."""
    state = start(strategy)
    for task, answers in enumerate(tasks):
        state = begun(strategy, state, task, task + 1, **answers)
        state = finished(strategy, state, task, [int(name[1:]) for name in answers])
    return state


def received(strategy, state, client, task):
    payload = strategy.send(state, stage(9, task), client)
    return [group for group in payload if group != "base"]


def overlaps(strategy, state, number, task=0):
    found = strategy.report(state, stage(number, task), {})
    return found["overlap"].values if "overlap" in found else found


def test_sit_sends_the_most_similar_of_the_whole_history_of_others():
    strategy = server("sit:2")
    state = lived(
        strategy,
        {"c0": "north", "c1": "east", "c2": "west"},
        {"c0": "west", "c1": "east", "c2": "north-east"},
        {"c0": "west", "c1": "east", "c2": "west"},
    )
    state = begun(strategy, state, 3, c1="east")
    # Cosines: 0/0 0, 2/1 0.707, the others -1; its own tasks are the same as the new.
    assert received(strategy, state, 1, 3) == ["adapters/0/0", "adapters/2/1"]
    assert received(server("sit:1"), state, 1, 3) == ["adapters/2/1"]
    assert received(server("sit:99"), state, 1, 3) == [
        f"adapters/{client}/{task}" for client in (0, 2) for task in range(3)
    ]


def test_without_a_summary_nobody_is_chosen_and_gets_none_and_so_without_an_adapter():
    strategy = server("sit:9")
    state = lived(strategy, {"c0": "", "c1": "east", "c2": "west"})
    state = begun(strategy, state, 0, c4="east")  # its task never ended
    state = begun(strategy, state, 1, c1="east", c2="")
    assert received(strategy, state, 1, 1) == ["adapters/2/0"]
    assert received(strategy, state, 2, 1) == [], "withheld"
    assert received(strategy, state, 0, 1) == [], "failed"


def test_a_query_is_made_at_the_start_of_a_task_and_with_sit_only():
    strategy, state = server(), start(server())
    assert strategy.configure_query(state, stage(1, 0), 0) == {}
    assert strategy.configure_query(state, stage(2, 0, starts_task=False), 0) is None
    for knowledge in ("previous", "all", "none", "sample:2"):
        assert server(knowledge).configure_query(state, stage(1, 0), 0) is None
    # Who goes on with a hidden task is not asked again, but who lost all is.
    state = lived(strategy, dict.fromkeys(("c0", "c1"), "east"))
    assert strategy.configure_query(state, stage(2, 0), 0) is None
    lost = strategy.on_state_lost(state, 0)
    assert strategy.configure_query(lost, stage(2, 0), 0) == {}


def test_diagnostics_are_the_scores_of_the_tasks_begun_in_a_round_and_the_chosen():
    strategy = server("sit:1", overlap="mean-cosine")
    state = lived(strategy, {"c0": "east", "c1": "north", "c2": ""})
    # Clients may be at different tasks in one round.
    state = begun(strategy, state, 1, number=5, c0="east")
    state = begun(strategy, state, 2, number=5, c1="north-east")
    assert overlaps(strategy, state, 5) == {
        "0/1": {"1/0": pytest.approx(0, abs=1e-7)},
        "1/2": {"0/0": pytest.approx(np.sqrt(0.5), abs=1e-6)},
    }
    marked = strategy.report(state, stage(5, 1), {})["overlap"].marked
    assert marked == {"0/1": ["1/0"], "1/2": ["0/0"]}
    assert overlaps(strategy, state, 6) == {}
    state = begun(strategy, state, 1, number=6, c2="west")
    assert overlaps(strategy, state, 6) == {
        "2/1": {"0/0": pytest.approx(-1), "1/0": pytest.approx(0, abs=1e-6)}
    }


def test_tasks_are_compared_by_how_they_differ_from_the_mean_of_all():
    """All vectors point east by and large; north or south is what differs."""
    vectors = {"a": [0.8, 0.2], "b": [0.8, -0.1], "c": [0.9, -0.1], "new": [0.7, 0.1]}
    answers = {n: {"summary": {"mean": np.float32(v)}} for n, v in vectors.items()}
    strategy = server("sit:1")
    heard = {0: answers["a"], 2: answers["b"], 3: answers["c"]}
    state = strategy.aggregate_query(start(strategy), stage(1, 0), heard)
    before = finished(strategy, state, 0, [0, 2, 3])
    state = strategy.aggregate_query(before, stage(2, 1), {1: answers["new"]})
    # The mean is (0.8, 0.025), of the new task too.
    away = {name: [x - 0.8, y - 0.025] for name, (x, y) in vectors.items()}
    assert overlaps(strategy, state, 2)["1/1"] == {
        f"{client}/0": pytest.approx(cosine(away["new"], away[name]), 1e-5)
        for client, name in ((0, "a"), (2, "b"), (3, "c"))
    }
    assert received(strategy, state, 1, 1) == ["adapters/0/0"]
    printed = server("sit:1", overlap="mean-cosine")
    state = printed.aggregate_query(before, stage(2, 1), {1: answers["new"]})
    assert received(printed, state, 1, 1) == ["adapters/3/0"]


def test_the_server_scores_centres_by_its_threshold():
    strategy = server("sit:1", overlap="thresholded", overlap_threshold=0.9)

    def rows(*names):
        return {"summary": {"centres": np.stack([vector(name) for name in names])}}

    heard = {0: rows("east", "west"), 2: rows("north-east", "north-east")}
    state = strategy.aggregate_query(start(strategy), stage(1, 0), heard)
    state = finished(strategy, state, 0, [0, 2])
    state = strategy.aggregate_query(state, stage(2, 1), {1: rows("east")})
    assert overlaps(strategy, state, 2) == {
        "1/1": {"0/0": pytest.approx(0.5), "2/0": 0}
    }


# ---- what clients may answer, and users ask for

LONG = np.float32([1, 0.2])
GOOD = {
    "centred-cosine": ("mean", vector("north")),
    "thresholded": ("centres", np.tile(vector("west"), (3, 1))),
}


def hostile(kind):
    name, good = GOOD[kind]
    yield "another group", {"adapters/0/0": {name: good}}
    yield "one more group", {"summary": {name: good}, "base": {}}
    yield "no name", {"summary": {}}
    yield "one more name", {"summary": {name: good, "more": good}}
    values = {
        "sparse": SparseArray.of_nonzero(good),
        "float64": good.astype(np.float64),
        "int64": good.astype(np.int64),
        "wider": good.repeat(2, axis=-1),
        "two axes more": good[None, None],
        "no axes": np.float32(0.5).reshape(()),
        "nothing": good[..., :0],
        "longer than 1": good * 0 + LONG,
        "squares beyond a float32": good * np.float32(1e30),
    }
    if kind == "thresholded":
        values["no rows"] = good[:0]
        values["too many rows"] = np.zeros((201, WIDTH), np.float32)
        values["one of them longer"] = np.stack([good[0], LONG])
    for what, value in values.items():
        yield what, {"summary": {name: value}}


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        pytest.param(kind, reply, id=f"{kind}: {what}")
        for kind in GOOD
        for what, reply in hostile(kind)
    ],
)
def test_an_answer_that_is_no_summary_is_refused(kind, reply):
    strategy = server(overlap=kind)
    with pytest.raises(WireError, match=r"^(query|summary/)"):
        strategy.check_query_reply(start(strategy), reply)


def test_a_summary_is_accepted_and_so_is_a_withheld_one():
    for kind, (name, values) in GOOD.items():
        strategy = server(overlap=kind)
        for each in (values, 0 * values):
            strategy.check_query_reply(start(strategy), {"summary": {name: each}})
        strategy.check_query_reply(start(strategy), {})


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_vectors_of_length_1_survive_any_precision_of_the_wire(precision):
    strategy = server(overlap="thresholded")
    angles = np.linspace(0, 2 * np.pi, 200)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    records = messages.MessageEncoder(WireFormat(precision)).payload(
        {"summary": {"centres": rows}}
    )
    strategy.check_query_reply(start(strategy), messages.decode_payload(records))


@pytest.mark.parametrize(
    "value", ["", "sit", "sit:0", "sit:-1", "sit:1.5", "sit:²", " sit:1", "previous:1"]
)
def test_what_is_no_policy_is_refused_with_one_sentence(value):
    sentence = r"strategy.knowledge: got .* 'sit:K' with K above 0"
    with pytest.raises(ConfigError, match=sentence):
        algorithm("fedseit").params({"knowledge": value})


def test_sit_is_refused_for_images(tmp_path):
    config = tiny(
        tmp_path, strategy="fedweit", **{"strategy.params": 'knowledge = "sit:2"'}
    )
    with pytest.raises(ConfigError, match=r"strategy\.knowledge: got 'sit:2', exp"):
        run_in_process(config)


# ---- a planted example in which the right choice of an adapter pays

DIMENSIONS, WORDS, LENGTH = 8, 40, 10
FOREIGN, NEW = 0, 1


class Language:
    """Two domains of words with vectors around different points.

    A document is noise with two words side by side, and its label is their order, so
    that neither its words nor their mean give the label away: filters must be learnt.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        rows = self.rng.normal(size=(2, WORDS + 2, DIMENSIONS)) / np.sqrt(DIMENSIONS)
        for domain in (0, 1):
            rows[domain, :, domain] += 0.5
            rows[domain, :2] = 1.5 * np.eye(DIMENSIONS)[2 + 2 * domain :][:2]
        rows = rows.reshape(-1, DIMENSIONS)
        self.table = np.float32(np.concatenate([np.zeros((1, DIMENSIONS)), rows]))

    def documents(self, domain, count):
        first = 1 + domain * (WORDS + 2)
        x = first + 2 + self.rng.integers(WORDS, size=(count, LENGTH))
        y = np.arange(count) % 2
        rows, places = np.arange(count), self.rng.integers(LENGTH - 1, size=count)
        x[rows, places] = first + y
        x[rows, places + 1] = first + 1 - y
        return Examples(torch.from_numpy(x), torch.from_numpy(y))

    def task(self, domain, count):
        return TaskData(*(self.documents(domain, n) for n in (count, 20, 300)), 2)

    def learner(self, client, epochs):
        model = create_model(
            "kim-cnn", tasks=3, classes=2, single_head=False, seed=0, table=self.table
        )
        # The gate shuts the base out: what a task has learnt is in its adapter alone.
        params = FedSeitParams(
            knowledge="sit:1",
            initial_gate=0.0,
            mask_rate=0.0,
            initial_adapter=1.0,
            initial_attention=8.0,
            lambda1=1e-4,
            clusters=10,
        )
        training = Training(epochs, batch_size=64, learning_rate=3e-3)
        return FedSeitLearner(params, model, ClientContext(client, 0, training))


def trained(strategy, state, learner, own, stage, data):
    """Train a round; both halves' state, and whose adapters came down."""
    client = learner.context.client
    received = strategy.send(state, stage, client)
    own, update = learner.train(Turn(own, received, stage, data))
    state = strategy.combine(state, stage, {client: update})
    return state, own, [g for g in received if g.startswith("adapters/")]


def test_the_relevant_adapter_of_a_task_long_past_beats_the_last_one(one_thread):
    language = Language(0)
    relevant, irrelevant = language.task(0, 300), language.task(1, 300)
    task = language.task(0, 12)
    sit = FedSeit(FedSeitParams(knowledge="sit:1"), ServerContext(0))
    other, new = language.learner(FOREIGN, 15), language.learner(NEW, 10)
    state = sit.init(snapshot(new.model, new.model.shared_names()))
    own = other.init()
    for number, data in enumerate((relevant, irrelevant)):
        now = stage(number + 1, number)
        reply = other.answer_query(Turn(own, {}, now, data))
        state = sit.aggregate_query(state, now, {FOREIGN: reply})
        state, own, _ = trained(sit, state, other, own, now, data)
    begins = stage(3, 2, ends_task=False)
    reply = new.answer_query(Turn({}, {}, begins, task))
    state = sit.aggregate_query(state, begins, {NEW: reply})
    scores = overlaps(sit, state, 3)["1/2"]
    assert scores["0/0"] > 0.8
    assert scores["0/1"] < 0.5

    accuracy = {}
    for knowledge, chosen in (("sit:1", "0/0"), ("previous", "0/1")):
        strategy = FedSeit(FedSeitParams(knowledge=knowledge), ServerContext(0))
        now, mine, came = trained(strategy, state, new, new.init(), begins, task)
        assert came == [f"adapters/{chosen}"]
        ends = stage(4, 2, starts_task=False)
        _, mine, _ = trained(strategy, now, new, mine, ends, task)
        found = score(lambda x, mine=mine: new.predict(mine, {}, 2, x), task.test)
        accuracy[knowledge] = found.accuracy
    assert accuracy["sit:1"] > accuracy["previous"] + 0.15
