"""A classifier on an encoder's last hidden states, for transformers.

A copy of this file lies in every exported folder: with it `from_pretrained` opens the
folder where fcl-flower is not installed. So it imports nothing else of this project.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from typing_extensions import override


class MeanPooledConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of an encoder, and the library's own of any classifier."""

    model_type = "mean-pooled"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        pooling: str = "mean",
        **others: Any,  # noqa: ANN401 - the library's
    ) -> None:
        """Take the encoder's configuration as a dictionary; None for a default one.

        ``pooling`` is ``mean`` over tokens, ``class`` for the first token, or ``both``
        for the first token and the mean of the others.
        """
        super().__init__(**others)
        self.pooling = pooling
        # Called without arguments by the library, to see which values differ.
        self.encoder: dict[str, Any] = encoder or {"model_type": "bert"}


class MeanPooledClassifier(PreTrainedModel):  # type: ignore[no-untyped-call]
    """An encoder of texts or images without a pooler, a mean over tokens, and a head.

    With another pooling the first token replaces the mean, or stands beside it.
    """

    config_class = MeanPooledConfig

    def __init__(self, config: MeanPooledConfig) -> None:
        """Make the network, without weights of its own."""
        super().__init__(config)
        inner: Any = AutoConfig.for_model(**config.encoder)
        encoder = AutoModel.from_config(inner)  # type: ignore[no-untyped-call]
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        self.encoder = encoder
        labels = cast(int, config.num_labels)
        width = inner.hidden_size * (2 if config.pooling == "both" else 1)
        self.classifier = nn.Linear(width, labels)
        self.post_init()  # type: ignore[no-untyped-call]

    @override
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Compute logits, shape (batch, classes), and the loss where labels are given.

        Args:
            input_ids: texts as the tokenizer numbers them, shape (batch, tokens).
            attention_mask: 1 for a token, 0 for padding; None for no padding.
            token_type_ids: ignored, as the encoder was trained without.
            pixel_values: images instead of texts, shape (batch, C, H, W).
            labels: the classes, shape (batch,), for the cross entropy.
        """
        if pixel_values is not None:
            hidden = self.encoder(pixel_values).last_hidden_state
            weights = torch.ones(hidden.shape[:2], device=hidden.device)
        elif input_ids is None:
            raise ValueError("got neither texts nor images, expected one of them")
        else:
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            encoded = self.encoder(input_ids, attention_mask=attention_mask)
            hidden = encoded.last_hidden_state
            weights = attention_mask.to(hidden.dtype)
        pooling = self.config.pooling
        parts = [] if pooling == "mean" else [hidden[:, 0]]
        if pooling != "class":
            if pooling == "both":
                hidden, weights = hidden[:, 1:], weights[:, 1:]
            weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
            parts.append((hidden * weights[..., None]).sum(1))
        logits = self.classifier(torch.cat(parts, 1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
