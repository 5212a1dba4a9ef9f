"""Federations that tune a tiny language model: data sets, local data, and answers."""

import json
import re
import warnings

import numpy as np
import peft
import pytest
import torch
import transformers
from click.testing import CliRunner
from fakes import rounds_of, run_in_process, summary_of, tiny
from language_models import KINDS, WORDS, instructing, write_rows

from fcl_flower.cli.main import cli
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.instructions import NO_LABEL
from fcl_flower.prediction.answers import answers
from fcl_flower.prediction.model import load
from fcl_flower.results.run_folder import CLIENTS
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return {
        **instructing(tmp_path_factory.mktemp("lm")),
        "model.layers": "all",
        "rounds": 2,
        "epochs": 15,
        "batch_size": 4,
        "learning_rate": 0.02,
        "valid_fraction": 0.0,
        "lr_patience": 0,
    }


@pytest.mark.parametrize(
    "strategy",
    ["fedavg", "fed-lora", "lorm", "local", "replay", "ewc", "fedprox", "mtl", "disco"],
)
def test_methods_learn_instructions(tmp_path, settings, strategy):
    more = {
        "disco": {"strategy.similarity": 0.7},
        # At the common rate it learns or not by how a processor rounds.
        "fedprox": {"learning_rate": 0.01},
    }.get(strategy, {})
    run_in_process(tiny(tmp_path, **{**settings, **more}, strategy=strategy))

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    (first, _), (kept, second) = summary_of(tmp_path)["accuracy_matrix"]
    if strategy == "lorm":  # a mean of two tasks' changes holds on to the first
        assert first > 0.9
        assert kept > 0.3
        return
    assert second > 0.4
    if strategy == "disco":
        assert kept == first > 0.9  # of a subspace that nothing changes any more
    elif strategy == "mtl":
        assert kept > 0.9
    else:
        assert kept < first > 0.5


def kept(folder):
    """Return the settings by which a run in one process keeps its clients' states."""
    return {"client_state": str(folder / CLIENTS), "keep_clients": "true"}


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """Return the folder of a run that has learned colours."""
    folder = tmp_path_factory.mktemp("finished")
    one = {**settings, "datasets": "colours", "tasks": 1, **kept(folder)}
    run_in_process(tiny(folder, **one, strategy="fed-lora"))
    return folder


def command(*words):
    found = CliRunner().invoke(cli, [str(word) for word in words])
    return found.exit_code, f"{found.output}{found.exception or ''}"


def test_a_model_answers_prompts_as_it_was_tested(finished, tmp_path):
    asked = [row["prompt"] for row in KINDS["colours"]]
    told = [row["response"] for row in KINDS["colours"]]
    found = answers(load(finished, client=0), asked)
    right = np.mean([a == b for a, b in zip(found, told, strict=True)])
    assert right == summary_of(finished)["client_accuracy"][0][0][0] > 0.5

    rows = [
        {"prompt": asked[0]},
        {"messages": [{"role": "user", "content": asked[4]}]},
    ]
    write_rows(tmp_path / "new.jsonl", rows)
    run = ("predict", finished, tmp_path / "new.jsonl", "--client", 0)
    code, text = command(*run, "--prompt", asked[8], "--output-format", "jsonl")
    assert code == 0, text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["answer"] for line in lines] == [found[8], found[0], found[4]]
    assert lines[1]["input"].endswith("new.jsonl:1")
    code, text = command("predict", finished, "--prompt", "say yes", "--client", 0)
    assert code == 0
    assert "answer" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prompt", " "), "prompt: got ' ', expected a text that is not empty"),
        (("--prompt", "a " * 70), "expected fewer than the 64 tokens of a context"),
        (("--prompt", "a", "--temperature", -1), "temperature: got -1.0, expected at"),
        (("--prompt", "a", "--top", 2), "top: got 2, expected none, as a language"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(finished, words, sentence):
    code, text = command(
        "predict", finished, "--client", 0, *words, "--max-new-tokens", 4
    )
    assert code != 0
    assert sentence in " ".join(text.split())


def test_a_prompt_needs_no_file_of_inputs(tmp_path):
    code, text = command("predict", "--state", tmp_path, "--prompt", "a")
    assert code != 0
    assert f"folder: got '{tmp_path}'" in text
    code, text = command("predict", "--prompt", "a")
    assert code != 0
    assert "INPUTS: got 'none', expected the folder of a run, or --state" in text
    code, text = command("predict", "--state", tmp_path)
    assert code != 0
    assert "expected a file to predict" in text


def test_a_class_model_answers_no_prompt(tmp_path):
    folder = tmp_path / "run"
    run_in_process(tiny(folder, tasks=1, **kept(folder)))
    code, text = command("predict", folder, "--client", 0, "--prompt", "a")
    assert code != 0
    assert "expected a run of causal-lm, which answers prompts" in " ".join(
        text.split()
    )


def test_hugging_face_opens_what_was_learned(finished, settings, tmp_path):
    given = ("--client", 0, "--output", tmp_path, "--format", "transformers,peft")
    code, text = command("export-model", finished, *given)
    assert code == 0, text
    asked = [row["prompt"] for row in KINDS["colours"]]
    model = load(finished, client=0)
    expected = answers(model, asked)

    merged = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "client-0.transformers"
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(settings["model.encoder"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the library's own calls
        added = peft.PeftModel.from_pretrained(base, tmp_path / "client-0.peft")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "client-0.peft")
    assert summary_of(finished)["token_loss_matrix"] == [
        [pytest.approx(_loss(merged.eval(), tokenizer), rel=1e-4)]
    ]
    for opened in (merged.eval(), added.eval()):
        for prompt, answer in zip(asked, expected, strict=True):
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )["input_ids"]
            with torch.no_grad():
                token = int(opened(input_ids=ids).logits[0, -1].argmax())
            assert WORDS[token] == (answer.split() or ["<end>"])[0]
    code, text = command("export-model", finished, "--client", 0, "--format", "onnx")
    assert code != 0
    assert "format" in text


def _loss(model, tokenizer):
    """Compute Hugging Face's mean loss of the tokens of all answers about colours."""
    total = tokens = 0
    for row in KINDS["colours"]:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        answer = [*tokenizer.encode(row["response"]), tokenizer.eos_token_id]
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * len(answer)
        tokens += len(answer)
    return total / tokens


def test_each_data_set_has_its_measure_and_its_loss(settings, tmp_path):
    found = {}
    for measure in ("exact-match", "rouge-l", "exact-match,rouge-l"):
        folder = tmp_path / measure
        run_in_process(
            tiny(folder, **settings, strategy="fedavg", **{"measure": measure})
        )
        found[measure] = summary_of(folder)
    exact, rouge, both = (found[m]["accuracy_matrix"] for m in found)
    assert [row[0] for row in both] == [row[0] for row in exact]
    assert both[1][1] == rouge[1][1] > exact[1][1]
    (first, none), (kept, second) = found["rouge-l"]["token_loss_matrix"]
    assert none is None
    assert kept > first > 0  # colours were forgotten
    assert found["rouge-l"]["token_loss"] == pytest.approx((kept + second) / 2)
    page = (tmp_path / "rouge-l" / "report.html").read_text()
    assert "Loss of a token on every task after every task" in page


def test_clients_learn_the_instructions_in_their_folders(settings, tmp_path):
    places = []
    for client, name in enumerate(KINDS):
        place = tmp_path / f"client-{client}"
        for split in ("train", "test"):
            write_rows(place / "task-01" / f"{split}.jsonl", KINDS[name])
        places.append({"data-path": str(place)})
    left_out = ("data.root", "datasets", "classes_per_task", "scenario")
    given = {k: v for k, v in settings.items() if k not in left_out}
    config = RunConfig.from_settings(
        **given,
        **{"scenario": "local-data", "strategy": "fedavg"},
        **{"clients": 2, "tasks": 1, "output": str(tmp_path / "run")},
    )
    run_in_process(config, places=places)
    assert [row["failed"] for row in rounds_of(tmp_path / "run")] == [[]] * 2
    scores = [
        matrix[0][0] for matrix in summary_of(tmp_path / "run")["client_accuracy"]
    ]
    assert sum(scores) > 0.8


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"strategy": "icarl"}, "strategy.name: got 'icarl', expected one of"),
        ({"model.head": "multi"}, "model.head: got 'multi', expected 'single'"),
        ({"balance": "weights"}, "training.balance: got 'weights'"),
        ({"per_class": True}, "federation.per_class: got true"),
        (
            {"unit": "example", "noise_multiplier": 1.0},
            "privacy.unit: got 'example', expected 'none' or",
        ),
        ({"model": "kim-cnn"}, "expected one for instructions: causal-lm"),
        (
            {"measure": "bleu"},
            "federation.measure: got 'bleu', expected one of exact-match, rouge-l, or "
            "one for each of 2 data sets, separated by commas",
        ),
        ({"measure": "rouge-l,rouge-l,exact-match"}, "federation.measure: got 'rouge"),
    ],
)
def test_what_tokens_have_not_is_refused(settings, tmp_path, values, sentence):
    config = tiny(tmp_path, **{**settings, "strategy": "fedavg", **values})
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        validate(resolve(config))


def test_a_memory_keeps_answers_of_other_lengths(settings, tmp_path):
    config = tiny(
        tmp_path,
        **settings,
        **{"strategy": "replay", "strategy.budget": "fixed"},
        **{"strategy.memory_samples": 6, **kept(tmp_path)},
    )
    run_in_process(config)
    state = load(tmp_path, client=0).state["memory"]
    labels = np.asarray(state["y"])
    assert labels.shape == (6, 3)
    assert labels.dtype == np.int16
    short = labels[np.asarray(state["task"]) == 0]  # one word and its end
    assert len(short)
    assert (short[:, 2] == NO_LABEL).all()


def test_rouge_l_counts_words_in_the_right_order(settings, tmp_path):
    one = {**settings, "datasets": "echoes", "tasks": 1, "strategy": "fed-lora"}
    run_in_process(tiny(tmp_path / "a", **one, **kept(tmp_path / "a")))
    run_in_process(tiny(tmp_path / "b", **one, measure="rouge-l"))
    exact, rouge = (summary_of(tmp_path / n)["client_accuracy"][0][0][0] for n in "ab")

    asked = [row["prompt"] for row in KINDS["echoes"]]
    found = answers(load(tmp_path / "a", client=0), asked, max_new_tokens=6)
    scores = [
        _rouge(r["response"], f) for r, f in zip(KINDS["echoes"], found, strict=True)
    ]
    assert rouge == pytest.approx(np.mean(scores), abs=1e-9)
    assert rouge > exact


def _rouge(right, written):
    """Compute the F-measure for a right answer that is one word twice."""
    one, words = right.split(), written.split()
    common = min(2, words.count(one[0]))
    return 2 * common / (len(one) + len(words)) if common else 0.0
