"""DOLFIN in whole runs on digits: some clients at a time, hostile ones, an end."""

import numpy as np
import pytest
from encoders import reading_digits
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from resuming import check_resumed, small

from fcl_flower.core.errors import ConfigError
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Reply
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]
QUERY, PAIR = "query.survey", "body.adapters.0"
ANOTHER = pytest.param("dinov2", marks=pytest.mark.soak)


@pytest.fixture(scope="module", params=["vit", ANOTHER])
def settings(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return reading_digits(folder, "dolfin", kind=request.param)


def test_some_clients_at_a_time_are_enough(tmp_path, settings):
    config = tiny(tmp_path, **settings, client_fraction=0.34)

    run_in_process(config)

    # Each round has one client; who missed a task can predict all the same.
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    for matrix in summary_of(tmp_path)["client_accuracy"]:
        assert None not in matrix[1]
    kinds = summary_of(tmp_path)["bytes_by_kind"]
    assert kinds["up"].keys() == {"adapters", "grams", "heads", "meta"}
    assert kinds["down"].keys() == {"adapters", "directions", "heads", "meta"}
    assert "keys-values" in (tmp_path / "config.toml").read_text()


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_tasks_of_one_round_and_rounded_messages_are_enough(tmp_path, settings, wire):
    given = {**settings, "rounds": 1, "wire_dtype": wire}

    run_in_process(tiny(tmp_path, **given))

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 2
    shares = [row["diagnostics"][f"subspace/{PAIR}"] for row in rounds_of(tmp_path)]
    assert 0 < shares[0] <= shares[1] < 1


@pytest.mark.soak
@pytest.mark.parametrize(("number", "kind"), [(1, "train"), (3, "train"), (4, QUERY)])
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(
    tmp_path, settings, number, kind
):
    check_resumed(tmp_path, small(**settings), number, kind)


@pytest.mark.parametrize("number", [1, 2])
def test_a_hostile_gram_matrix_is_left_out_as_if_its_client_had_not_answered(
    tmp_path, settings, number
):
    def negative(who, request, reply):
        if who != 1 or not asked_in(request, number, QUERY):
            return reply
        half = messages.decode_payload(reply.content)["grams"][PAIR]
        content = with_array(reply.content, "grams", PAIR, array_of(-np.asarray(half)))
        return Reply(request, content)

    def absent(who, request, reply):
        asked = who == 1 and asked_in(request, number, QUERY)
        return failure(request, "gone") if asked else reply

    run_in_process(tiny(tmp_path / "a", **settings), tamper=negative)
    run_in_process(tiny(tmp_path / "b", **settings), tamper=absent)

    rows = rounds_of(tmp_path / "a")
    assert [row["failed"] for row in rows] == [[1] * (n == number) for n in range(1, 5)]
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]


def test_other_layers_are_refused_before_the_run(tmp_path, settings):
    config = tiny(tmp_path, **settings, **{"model.layers": "all"})

    with pytest.raises(ConfigError, match=r"model\.layers: got .*expected keys-values"):
        run_in_process(config)


def test_attention_has_its_inputs_in_pairs_too(tmp_path, settings):
    given = {**settings, "rounds": 1, "model.layers": "attention"}

    run_in_process(tiny(tmp_path, **given))

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 2


def test_a_run_without_rounds_is_refused(tmp_path, settings):
    config = tiny(tmp_path, **settings, asynchronous=True)

    with pytest.raises(ConfigError, match=r"asynchronous\.enabled: got true"):
        validate(resolve(config))
