"""Pre-trained language models with LoRA: a body, and the head of the next token.

A language model is a classifier of the next token. So its labels are tokens: a sample
has the labels of its answer, shape (batch, answer), and the logits have the shape
(batch, vocabulary, answer). `fcl_flower.data.instructions` makes such samples.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.adapters import LoraTransformer
from fcl_flower.models.encoder import CHUNK, TOLERANCE, Hidden
from fcl_flower.models.heads import GrowingHead
from fcl_flower.models.pretrained import load_language_model, load_tokenizer
from fcl_flower.models.registry import LanguageParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROMPT, _ANSWER = 1.0, 2.0
"""The values of a mask: a token of the prompt, and one before a token of the answer."""


class LanguageHead(GrowingHead):
    """The frozen layer from features (batch, answer, D) to logits of the next token.

    Attributes:
        weight: the language model's own, shape (vocabulary, D).
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Compute logits, shape (batch, vocabulary, answer)."""
        return linear(x, self.weight).transpose(1, 2)


class LanguageModel(LoraTransformer):
    """A body from prompts with answers to features (batch, answer, D).

    Inputs are those of `ChatTokenizer`: one more than a prompt's tokens, the negative
    of that for the answer's, and 0 for padding. Features are the last hidden states
    from which a token of the answer is predicted. An answer shorter than the longest of
    the batch has features of no meaning behind it, where `NO_LABEL` stands.

    Attributes:
        whole: the library's model, which generates texts with the changes (LoRA).
    """

    table = "embed_tokens"
    whole: Any
    _checkpoints = False

    def __init__(self, params: LanguageParams) -> None:
        super().__init__(params)
        if params.max_tokens > self.context:
            expected = f"at most the {self.context} that {params.encoder!r} reads"
            raise config_error("model.max_tokens", params.max_tokens, expected)
        self._checkpoints = params.checkpoints
        empty = load_tokenizer(params.encoder).apply_chat_template(
            [{"role": "user", "content": ""}],
            add_generation_prompt=True,
            return_dict=False,
        )
        self._template = torch.tensor(sorted({*empty}))

    @override
    def library_model(self, name: str) -> "PreTrainedModel":
        self.whole = load_language_model(name)
        return cast("PreTrainedModel", self.whole.base_model)

    @property
    def context(self) -> int:
        """The largest number of tokens that each token may look back at."""
        config: Any = self.encoder.config
        window = getattr(config, "sliding_window", None)
        return min(int(config.max_position_embeddings), window or sys.maxsize)

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return each changed layer's A (rank, inputs) and B (outputs, rank), by name.

        Raises:
            ConfigError: a layer has a fixed change that is one matrix.
        """
        names = {module: name for name, module in self.encoder.named_modules()}
        found = {}
        for layer, change in zip(self._layers, self.changes, strict=True):
            if len(change.fixed) == 1:
                expected = "transformers, as a change is no product of small matrices"
                raise config_error("format", "peft", expected)
            pairs = [
                (change.down, change.up),
                *([change.fixed] if change.fixed else []),
            ]
            downs, ups = zip(*pairs, strict=True)
            found[names[layer]] = torch.cat(downs), torch.cat(ups, 1)
        return found

    def own_head(self) -> LanguageHead:
        """Make the head of the pre-trained weights."""
        return LanguageHead(self.whole.get_output_embeddings().weight)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)

    @override
    def hidden(self, features: Tensor) -> Hidden:
        mask = features[..., -1]
        longest = int((mask > 0).sum(1).max()) if len(features) else 0
        return Hidden(features[:, :longest, :-1], mask[:, :longest])

    @override
    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the fixed input of the first block whose changes are trained."""
        if not self.first:
            return x
        parts = []
        for at in range(0, len(x), CHUNK):
            hidden = self.run(self._entered(x[at : at + CHUNK]), 0, self.first)
            parts.append(torch.cat([hidden.values, hidden.mask[..., None]], 2))
        none = torch.zeros(0, x.shape[1], self._width + 1, device=x.device)
        return torch.cat(parts) if parts else none

    @override
    def enter(self, x: Tensor) -> Hidden:
        longest = int((x != 0).sum(1).max()) if len(x) else 0
        return self._entered(x[:, :longest])

    def _entered(self, x: Tensor) -> Hidden:
        numbers = (x.abs() - 1).clamp(min=0)
        mask = (x != 0).float() * _PROMPT
        mask[:, :-1][x[:, 1:] < 0] = _ANSWER
        return Hidden(self.encoder.get_input_embeddings()(numbers), mask)

    @override
    def run(self, hidden: Hidden, start: int, stop: int) -> Hidden:
        """Run the blocks; no token looks at the padding behind it."""
        values, library = hidden.values, cast(Any, self.encoder)
        places = torch.arange(values.shape[1], device=values.device)[None]
        turns = library.rotary_emb(values, position_ids=places)
        saves = self._checkpoints and torch.is_grad_enabled() and start == self.first
        with torch.autocast(values.device.type, torch.bfloat16, enabled=self._half):
            for block in self.blocks[start:stop]:
                known = {"position_ids": places, "position_embeddings": turns}
                if saves:
                    values = checkpoint(block, values, use_reentrant=False, **known)
                else:
                    values = block(values, **known)
        return Hidden(values.float(), hidden.mask)

    @override
    def pool(self, hidden: Hidden) -> Tensor:
        """Take the states before each token of the answer, after the last norm."""
        here = hidden.mask == _ANSWER
        longest = int(here.sum(1).max()) if len(here) else 0
        # An answer's tokens follow each other.
        places = here.int().argmax(1)[:, None] + torch.arange(
            longest, device=here.device
        )
        places = places.clamp(max=max(here.shape[1] - 1, 0))[..., None]
        values = hidden.values.gather(1, places.expand(-1, -1, self._width))
        return cast(Tensor, cast(Any, self.encoder).norm(values))

    @override
    def encoder_inputs(self, x: Tensor) -> dict[str, Tensor]:
        numbers = (x.abs() - 1).clamp(min=0)
        return {"input_ids": numbers, "attention_mask": (x != 0).long()}

    @override
    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Embed prompts by the mean of their tokens' vectors, shape (N, D).

        The words of the template of a chat do not count, since all prompts have them.
        """
        numbers = (x - 1).clamp(min=0)
        prompt = ((x > 0) & ~torch.isin(numbers, self._template.to(x.device))).float()
        vectors = self.encoder.get_input_embeddings()(numbers)
        total = (vectors * prompt[..., None]).sum(1)
        return cast(Tensor, total / prompt.sum(1, keepdim=True).clamp(min=1))

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        end: int,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """Write an answer to each prompt, with the changes of the layers.

        Args:
            prompts: numbers of each prompt's tokens.
            end: number of the token that ends an answer.
            max_new_tokens: largest number of an answer's tokens.
            temperature: 0 for the likeliest token; above 0 tokens are drawn.
            seed: seed of the draws.

        Returns:
            the numbers of each answer's tokens, without the end.
        """
        from transformers import GenerationConfig

        device = next(self.parameters()).device
        longest = max(map(len, prompts))
        rows = [[end] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        masks = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        draws = {"do_sample": True, "temperature": temperature, "top_k": 0}
        # The model's own settings may punish repetition, or draw.
        how = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max_new_tokens,
            eos_token_id=end,
            pad_token_id=end,
            **(draws if temperature else {"do_sample": False}),
        )
        self.eval()
        with torch.random.fork_rng(), self._typed(device):
            torch.manual_seed(seed)
            written: Tensor = self.whole.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(masks, device=device),
                generation_config=how,
            )
        answers: list[list[int]] = written[:, longest:].tolist()
        return [a[: a.index(end)] if end in a else a for a in answers]

    def _typed(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self._half)

    @override
    @torch.no_grad()
    def _check(self, name: str) -> None:
        """Refuse a model whose blocks, run one by one, compute something else."""
        x = torch.tensor([[3, 4, 5, -6, -7], [4, 3, -5, 0, 0]])
        try:
            entered = self._entered(x)
            computed = self.run(entered, 0, len(self.blocks)).values
            computed = cast(Any, self.encoder).norm(computed)
            expected = self.encoder(**self.encoder_inputs(x)).last_hidden_state
        except (TypeError, AttributeError, RuntimeError, IndexError, ValueError) as e:
            raise self._refused(name) from e
        present = entered.mask > 0
        if not torch.allclose(computed[present], expected[present], atol=TOLERANCE):
            raise self._refused(name)
