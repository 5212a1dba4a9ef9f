"""A client that says of itself what is not true: it must hurt nobody else."""

import pytest
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from mutants import with_groups, with_table

from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import Encoded
from fcl_flower.rounds.messages import BY_CLASS
from fcl_flower.rounds.transport import Reply

pytestmark = pytest.mark.run

HONEST, HOSTILE = 0, 1
METHODS = [
    {"strategy": "fedavg"},
    {"strategy": "fedweit", "asynchronous": True, "simulated_durations": "1,3"},
]


def answered_by(kind, content):
    """The hostile client answers all messages of a kind by ``content(reply)``."""

    def tamper(who, request, reply):
        if who != HOSTILE or request.kind != kind:
            return reply
        return Reply(request, content(request, reply))

    return tamper


def absent(who, request, reply):
    gone = who == HOSTILE and request.kind == "train"
    return failure(request, "gone") if gone else reply


def plain(content):
    tensors = {
        group: {
            name: (one.dtype, one.shape, one.form, bytes(one.data))
            for name, one in arrays.items()
        }
        for group, arrays in content.tensors.items()
    }
    return tensors, content.scalars


def told(transport, client):
    """All that a client was sent but the run, bit by bit."""
    return [
        (m.kind, plain(m.content))
        for c, m in transport.asked
        if c == client and not messages.told_run(m.content)
    ]


def scores_of(folder, client):
    lines = (folder / "accuracy.csv").read_text().splitlines()[1:]
    return [line for line in lines if line.split(",")[2] == str(client)]


# ---- "I have lost my memory"


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda m: "-".join(map(str, m.values()))
)
def test_a_client_that_always_reports_a_lost_state_is_like_an_absent_one(
    tmp_path, method
):
    def forgets(request, reply):
        return messages.state_lost(messages.decode_request(request.content).stage.round)

    transports = {}
    for name, tamper in (("false", answered_by("train", forgets)), ("away", absent)):
        config = tiny(tmp_path / name, rounds=3, **method)
        transports[name] = run_in_process(config, tamper=tamper)
    assert told(transports["false"], HONEST) == told(transports["away"], HONEST)
    assert scores_of(tmp_path / "false", HONEST) == scores_of(tmp_path / "away", HONEST)
    assert scores_of(tmp_path / "false", HONEST)
    reasons = [r["reasons"].get("1", "") for r in rounds_of(tmp_path / "false")]
    assert any("has lost its state" in why for why in reasons)


# ---- "I know more tasks than you ask for"


def with_scores(reply, accuracy):
    table = {"accuracy": accuracy, "model-bytes": 1}
    return with_table(reply.content, messages.SCORES, table)


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda m: "-".join(map(str, m.values()))
)
def test_scores_of_tasks_that_were_not_asked_for_are_not_recorded(tmp_path, method):
    boast = answered_by("train", lambda m, reply: with_scores(reply, [1.0] * 9))
    boast_later = answered_by(
        "evaluate", lambda m, reply: with_scores(reply, [1.0] * 9)
    )
    run_in_process(tiny(tmp_path / "honest", **method))
    run_in_process(
        tiny(tmp_path / "boast", **method),
        tamper=lambda *reply: boast_later(*reply[:2], boast(*reply)),
    )
    for name in ("honest", "boast"):
        assert scores_of(tmp_path / name, HONEST)
    assert scores_of(tmp_path / "boast", HOSTILE) == []
    assert scores_of(tmp_path / "boast", HONEST) == scores_of(
        tmp_path / "honest", HONEST
    )


def test_scores_beside_an_update_are_ignored_unless_asked_for(tmp_path):
    boast = answered_by("train", lambda m, reply: with_scores(reply, [1.0]))
    for name, tamper in (("honest", None), ("boast", boast)):
        config = tiny(tmp_path / name, strategy="fedavg")
        unasked = config.replace(evaluate_before_aggregation=False)
        run_in_process(unasked, tamper=tamper)
    for client in (HONEST, HOSTILE):
        found = [scores_of(tmp_path / name, client) for name in ("honest", "boast")]
        assert found[0] == found[1]
    before = summary_of(tmp_path / "boast")["before_aggregation"]
    assert before["average_accuracy"] is None


# ---- "I have counted other samples"


def doubled(counts):
    return {name: [2 * n for n in found] for name, found in counts.items()}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda counts: {}, "right: expected "),
        (lambda counts: {**counts, "tested": 3}, "tested: expected "),
        (doubled, "tested: expected ["),
    ],
    ids=["none", "a number", "doubled"],
)
@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_counts_of_other_samples_are_left_out_by_name(tmp_path, changed, why, strategy):
    def lie(who, request, reply):
        if who != HOSTILE or messages.SCORES not in reply.content.scalars:
            return reply
        honest = dict(reply.content.scalars[messages.SCORES])
        counts = {name: honest.pop(name) for name in BY_CLASS}
        table = {**honest, **changed(counts)}
        return Reply(request, with_table(reply.content, messages.SCORES, table))

    given = {"strategy": strategy, "per_class": True}
    run_in_process(tiny(tmp_path / "honest", **given))
    run_in_process(tiny(tmp_path / "lying", **given), tamper=lie)

    honest, lying = (scores_of(tmp_path / name, HONEST) for name in ("honest", "lying"))
    assert honest == lying
    assert honest
    assert scores_of(tmp_path / "lying", HOSTILE) == []
    *_, last = rounds_of(tmp_path / "lying")
    assert last["reasons"][str(HOSTILE)].startswith(f"evaluation: {why}")
    tested = [
        sum(one["tested"] for one in summary_of(tmp_path / name)["per_class"])
        for name in ("honest", "lying")
    ]
    assert 0 < tested[1] < tested[0]


# ---- names that are no text


def test_a_name_that_cannot_be_printed_is_in_no_file_and_no_log(tmp_path, capfd):
    broken = {"w": Encoded("float32", (9,), "nothing", bytes(9))}

    def rename(request, reply):
        return with_groups(reply.content, {"\x1b[2J\ud800": broken})

    run_in_process(
        tiny(tmp_path, strategy="fedavg"), tamper=answered_by("train", rename)
    )
    for row in rounds_of(tmp_path):
        assert row["reasons"] == {"1": "?[2J?/w: unknown form 'nothing'"}
        assert row["bytes_up"].keys() == {"base", "meta", "unused"}
    texts = [path.read_text() for path in tmp_path.glob("*.*")]
    for text in (*texts, *capfd.readouterr()):
        assert "\x1b[2J" not in text
        assert "\\u001b" not in text
        assert "ud800" not in text
