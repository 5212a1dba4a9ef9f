"""A trained language model as folders that Hugging Face's libraries open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.data.instructions import ChatTokenizer
from fcl_flower.models.language import LanguageModel
from fcl_flower.models.registry import LanguageParams
from fcl_flower.prediction.answers import with_weights
from fcl_flower.prediction.model import Model


def write_merged(model: Model, folder: Path) -> None:
    """Write the language model with its changes added to its weights, and tokenizer.

    ``AutoModelForCausalLM.from_pretrained(folder)`` opens it.
    """

    def write(body: LanguageModel) -> None:
        start = f"{body.whole.base_model_prefix}."
        weights = {**body.whole.state_dict()}
        for name, tensor in body.encoder_state().items():
            weights[start + name] = tensor.detach().clone()
        body.whole.save_pretrained(folder, state_dict=weights)

    with_weights(model, write)
    _tokenizer(model).save_pretrained(folder)


def write_peft(model: Model, folder: Path) -> None:
    """Write the changes of low rank as the library peft does, and the tokenizer.

    ``PeftModel.from_pretrained(base, folder)`` adds them to the pre-trained model.

    Raises:
        ConfigError: a change is no product of two small matrices.
    """
    with require_extra("llm", "format peft"):
        from peft import LoraConfig, get_peft_model

    def factors(body: LanguageModel) -> Mapping[str, tuple[Tensor, Tensor]]:
        return {
            name: (down.detach().clone(), up.detach().clone())
            for name, (down, up) in body.factors().items()
        }

    by_layer = with_weights(model, factors)
    body: Any = model.learner.model.body
    start = f"{body.whole.base_model_prefix}."
    rank = len(next(iter(by_layer.values()))[0])
    params = model.run.model_params
    assert isinstance(params, LanguageParams)
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # the changes have no other factor
        target_modules=[start + name for name in by_layer],
        task_type="CAUSAL_LM",
        base_model_name_or_path=params.encoder,
    )
    # A fresh copy, since peft puts its own layers in the place of the model's.
    from fcl_flower.models.pretrained import load_language_model

    with catch_warnings():
        simplefilter("ignore", FutureWarning)  # of calls between the two libraries
        wrapped = get_peft_model(load_language_model(params.encoder), config)
    layers = dict(wrapped.get_base_model().named_modules())
    with torch.no_grad():
        for name, (down, up) in by_layer.items():
            layer = layers[start + name]
            layer.lora_A["default"].weight.copy_(down)
            layer.lora_B["default"].weight.copy_(up)
    wrapped.save_pretrained(str(folder))
    _tokenizer(model).save_pretrained(folder)


def _tokenizer(model: Model) -> Any:  # noqa: ANN401 - Hugging Face has many types
    tokenizer = model.run.tokenizer
    if not isinstance(tokenizer, ChatTokenizer):
        name = model.run.config.model.name
        raise config_error("model.name", name, "causal-lm")
    return tokenizer.tokenizer


WRITERS = {"transformers": write_merged, "peft": write_peft}
"""The function that writes a language model, by format."""
