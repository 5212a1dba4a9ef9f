"""A trained encoder and its head as a folder that `from_pretrained` opens."""

import json
import shutil
from pathlib import Path

import torch

from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.data.images import PIXEL_DEVIATION, PIXEL_MEAN
from fcl_flower.exports.networks import Trained
from fcl_flower.models.adapters import LoraTransformer
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.heads import Head, Network
from fcl_flower.models.pretrained import EncoderParams, load_tokenizer

_TOLERANCE = 1e-4
_MODALITIES = {
    "AutoModelForSequenceClassification": True,
    "AutoModelForImageClassification": False,
}
"""What opens the folder, and whether it is for encoders of texts."""


def write_transformers(found: Trained, folder: Path) -> None:
    """Write configuration, weights, the network's code, and what prepares inputs.

    ``AutoModelForSequenceClassification.from_pretrained(folder,
    trust_remote_code=True)`` opens it, for images ``AutoModelForImageClassification``.
    The code is needed since no classifier of the library takes the mean over tokens.
    Changes of low rank are added to the weights.

    Raises:
        ConfigError: the model is no encoder with a linear head, or does not give the
            learner's logits in the library's form, as in bfloat16.
    """
    with require_extra("transformers", "format transformers"):
        from fcl_flower.exports import mean_pooled
    network, params = found.network, found.params
    body = network.body if isinstance(network, Network) else None
    head = network.head if isinstance(network, Network) else None
    if not (
        isinstance(body, Transformer)
        and isinstance(params, EncoderParams)
        and type(body) in (Transformer, LoraTransformer)
        and type(head) is Head
    ):
        expected = "transformer, vit, lora-transformer or lora-vit, with a linear head"
        raise config_error("model.name", found.about["model"], expected)
    encoder = body.encoder.config.to_dict()
    # Where it was loaded from is nobody else's business.
    encoder.pop("_name_or_path", None)
    rest = range(len(found.class_names), found.logits.shape[1])
    names = [*found.class_names, *(f"LABEL_{label}" for label in rest)]
    config = mean_pooled.MeanPooledConfig(
        encoder,
        id2label=dict(enumerate(names)),
        label2id={name: label for label, name in enumerate(names)},
    )
    code = Path(mean_pooled.__file__)
    config.auto_map = {"AutoConfig": f"{code.stem}.MeanPooledConfig"} | {
        opens: f"{code.stem}.MeanPooledClassifier"
        for opens, of_texts in _MODALITIES.items()
        if of_texts == body.text
    }
    opened = mean_pooled.MeanPooledClassifier(config)
    opened.train(False)
    opened.encoder.load_state_dict(body.encoder_state())
    opened.classifier.load_state_dict(head.state_dict())
    with torch.no_grad():
        logits = opened(**body.encoder_inputs(found.test.x)).logits
    if not torch.allclose(logits, found.logits, _TOLERANCE, _TOLERANCE):
        expected = "float32, as the library's own form gives other logits"
        raise config_error("model.dtype", params.dtype, expected)
    opened.save_pretrained(folder)
    shutil.copyfile(code, folder / code.name)
    if body.text:
        tokenizer = load_tokenizer(params.encoder)
        tokenizer.model_max_length = params.max_tokens
        tokenizer.save_pretrained(folder)
    else:
        about = json.dumps(_image_processor(found.test.x.shape[1:]), indent=2)
        (folder / "preprocessor_config.json").write_text(f"{about}\n")


def _image_processor(shape: tuple[int, ...]) -> dict[str, object]:
    # How images are brought to (C, H, W), as `to_tensor` does.
    channels, height, width = shape
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [PIXEL_MEAN] * channels,
        "image_std": [PIXEL_DEVIATION] * channels,
    }
