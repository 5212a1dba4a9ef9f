"""A trained encoder and its head as a folder that `from_pretrained` opens."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import torch

from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.exports.networks import Exported, Masked
from fcl_flower.models.adapters import LoraTransformer
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.heads import CLOSED, Head, Network
from fcl_flower.models.normalisation import Normalisation
from fcl_flower.models.pretrained import EncoderParams, load_tokenizer

_TOLERANCE = 1e-4


def write_transformers(exported: Exported, folder: Path) -> None:
    """Write configuration, weights, the network's code, and the preparation of inputs.

    ``AutoModelForSequenceClassification.from_pretrained(folder,
    trust_remote_code=True)`` opens the folder; for images it is
    ``AutoModelForImageClassification``. The folder has code, since no classifier of the
    library takes the mean over tokens. Changes of low rank are added to the weights.

    Raises:
        ConfigError: the model is no encoder with a linear head, or the library's form
            gives other logits than the learner, as with bfloat16.
    """
    with require_extra("transformers", "format transformers"):
        from transformers import PreTrainedModel

        from fcl_flower.exports import mean_pooled
    run, network = exported.model.run, exported.network
    mask = network if isinstance(network, Masked) else None
    network = network if mask is None else mask.network
    params = run.model_params
    body = network.body if isinstance(network, Network) else None
    head = network.head if isinstance(network, Network) else None
    if not (
        isinstance(body, Transformer)
        and isinstance(params, EncoderParams)
        and type(body) in (Transformer, LoraTransformer)
        and type(head) is Head
        and isinstance(body.encoder, PreTrainedModel)
    ):
        expected = (
            "transformer, vit, lora-transformer or lora-vit, with a linear head and no "
            "encoder of timm"
        )
        raise config_error("model.name", run.config.model.name, expected)
    encoder = body.encoder.config.to_dict()
    # The path of the encoder is private. The stages that a backbone may return are
    # those from before blocks were left out.
    for key in ("_name_or_path", "stage_names", "out_features", "out_indices"):
        encoder.pop(key, None)
        encoder.pop(f"_{key}", None)
    config = mean_pooled.MeanPooledConfig(
        encoder,
        body.pooling,
        id2label=dict(enumerate(exported.names)),
        label2id={name: label for label, name in enumerate(exported.names)},
    )
    code = Path(mean_pooled.__file__)
    what = "Sequence" if body.text else "Image"
    config.auto_map = {
        "AutoConfig": f"{code.stem}.MeanPooledConfig",
        f"AutoModelFor{what}Classification": f"{code.stem}.MeanPooledClassifier",
    }
    opened = mean_pooled.MeanPooledClassifier(config)
    opened.train(False)
    opened.encoder.load_state_dict(body.encoder_state())
    rows = list(exported.rows)
    weight, bias = head.weight[rows].clone(), head.bias[rows].clone()
    for closed in (head.closed, None if mask is None else mask.closed):
        if closed is not None:  # classes of other tasks, or of tasks to come
            weight[closed[rows]], bias[closed[rows]] = 0.0, CLOSED
    opened.classifier.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        logits = opened(**body.encoder_inputs(exported.inputs)).logits
    if not torch.allclose(logits, exported.logits[:, rows], _TOLERANCE, _TOLERANCE):
        expected = "float32, as the library's own form gives other logits"
        raise config_error("model.dtype", params.dtype, expected)
    opened.save_pretrained(folder)
    shutil.copyfile(code, folder / code.name)
    if body.text:
        tokenizer = deepcopy(load_tokenizer(params.encoder))
        tokenizer.model_max_length = params.max_tokens
        tokenizer.save_pretrained(folder)
    else:
        shape = exported.inputs.shape[1:]
        about = json.dumps(_image_processor(shape, run.normalisation), indent=2)
        (folder / "preprocessor_config.json").write_text(f"{about}\n")


def _image_processor(
    shape: tuple[int, ...], normalisation: Normalisation
) -> dict[str, object]:
    # The same preparation as that of `to_tensor`.
    channels, height, width = shape
    mean, deviation = (
        [*values] * (channels if len(values) == 1 else 1) for values in normalisation
    )
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }
