"""The network for texts of Kim (EMNLP 2014), over fixed word vectors."""

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, embedding_bag, pad
from typing_extensions import override

WIDTHS = (3, 4, 5)
FILTERS = 128
DROPOUT = 0.3


class Windows:
    """The windows of up to ``widest`` words in the documents of a batch.

    Attributes:
        vectors: vectors of the different words, shape (words, D).
        counts: number of words of each document, shape (batch,).
    """

    def __init__(self, x: Tensor, table: Tensor, widest: int) -> None:
        """Look up the words of documents.

        Args:
            x: word numbers, shape (batch, words), padded with 0 at the end.
            table: vector of each word number; row 0 is zeros.
            widest: words of the widest filter; shorter documents are padded to it.
        """
        self.counts = (x != 0).sum(1).clamp(min=widest)
        x = pad(x, (0, max(0, widest - x.shape[1])))
        places = torch.arange(x.shape[1], device=x.device).expand_as(x)
        counts = self.counts.unsqueeze(1)
        inside = places < counts
        words, self._words = torch.unique(x[inside], return_inverse=True)
        self._left = (counts - places)[inside]
        self.vectors = table[words]

    def taps(self, width: int) -> Tensor:
        """Find the rows of (word, tap) that each window sums, shape (N, width)."""
        starts = torch.nonzero(self._left >= width)
        offsets = torch.arange(width, device=starts.device)
        rows: Tensor = self._words[starts + offsets] * width + offsets
        return rows

    def responses(self, weight: Tensor) -> Tensor:
        """Compute the responses (N, F) of filters (F, D, width) to all windows."""
        filters, _, width = weight.shape
        products = self.vectors @ weight.permute(1, 2, 0).flatten(1)
        rows = products.view(-1, filters)
        return embedding_bag(self.taps(width), rows, mode="sum")

    def over_time(self, responses: Tensor, width: int, kind: str) -> Tensor:
        """Reduce responses by ``kind`` over each document's windows, to (batch, F).

        ``kind`` is "max", "min" or "sum".
        """
        if not len(self.counts):  # segment_reduce refuses an empty batch
            return responses
        lengths = self.counts - width + 1
        return torch.segment_reduce(responses, kind, lengths=lengths, axis=0)

    def largest(self, weight: Tensor) -> Tensor:
        """Take the maximum over time, (batch, F); differentiable in ``weight``."""
        # Mixed precision would round the summands, so that windows would tie.
        with torch.autocast(weight.device.type, enabled=False):
            return cast(Tensor, _Largest.apply(weight, self))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def extremes(self, weight: Tensor) -> Tensor:
        """Take maximum and minimum over time, (2, batch, F), without gradients."""
        responses, width = self.responses(weight), weight.shape[2]
        return torch.stack(
            [self.over_time(responses, width, kind) for kind in ("max", "min")]
        )


class _Places:
    """The windows of a batch for an exported graph.

    It computes the same as `Windows`. The sizes of its tensors follow from the batch's
    shape, since an exported graph cannot count the different words.
    """

    def __init__(self, x: Tensor, table: Tensor, widest: int) -> None:
        """Look up the words of documents, with padding behind each of them."""
        self._counts = (x != 0).sum(1, keepdim=True).clamp(min=widest)
        self._words = table[pad(x, (0, widest - 1))].transpose(1, 2)

    def largest(self, weight: Tensor) -> Tensor:
        """Take the maximum over time, (batch, F)."""
        return self.extremes(weight)[0]

    def extremes(self, weight: Tensor) -> Tensor:
        """Take maximum and minimum over time, (2, batch, F)."""
        responses = conv1d(self._words, weight)
        starts = torch.arange(responses.shape[2], device=responses.device)
        outside = (starts > self._counts - weight.shape[2])[:, None]
        largest = responses.masked_fill(outside, -torch.inf).amax(2)
        smallest = responses.masked_fill(outside, torch.inf).amin(2)
        return torch.stack([largest, smallest])


class _Largest(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, weight: Tensor, windows: Windows) -> Tensor:
        responses = windows.responses(weight)
        largest = windows.over_time(responses, weight.shape[2], "max")
        ctx.windows, ctx.shape = windows, weight.shape
        ctx.save_for_backward(responses, largest)
        return largest

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        responses, largest = ctx.saved_tensors
        windows, (filters, depth, width) = ctx.windows, ctx.shape
        lengths = windows.counts - width + 1
        hits = responses == largest.repeat_interleave(lengths, 0)
        # Windows of the same words tie, and share the gradient equally.
        share = gradients[0] / windows.over_time(hits.to(responses.dtype), width, "sum")
        window, column = torch.nonzero(hits, as_tuple=True)
        document = torch.arange(len(lengths), device=lengths.device)
        values = share[document.repeat_interleave(lengths)[window], column]
        rows = windows.taps(width)[window]
        summed = values.new_zeros(len(windows.vectors) * width * filters)
        places = (rows * filters + column.unsqueeze(1)).flatten()
        summed.index_add_(0, places, values.repeat_interleave(width))
        gradient = windows.vectors.t() @ summed.view(-1, width * filters)
        return gradient.view(depth, width, filters).permute(2, 0, 1), None


class KimCnn(nn.Module):
    """A body from (batch, words) to (batch, 384) with filters of 3, 4 and 5 words.

    A filter sees only whole windows of one document. So the result depends neither on
    padding nor on other documents of the batch. The word vectors are no parameter: they
    are neither trained nor sent.
    """

    def __init__(self, table: npt.NDArray[Any]) -> None:
        """Take word vectors, float32, shape (words + 1, D), with zeros in row 0."""
        super().__init__()
        self.register_buffer("table", torch.tensor(table), persistent=False)
        self.table: Tensor
        self.convs = nn.ModuleList(
            nn.Conv1d(table.shape[1], FILTERS, width) for width in WIDTHS
        )
        self.dropout = nn.Dropout(DROPOUT)

    @override
    def forward(self, x: Tensor) -> Tensor:
        kind = _Places if torch.compiler.is_compiling() else Windows
        windows = kind(x, self.table, max(WIDTHS))
        tensors = dict(self.convs.named_parameters())
        pooled = [
            windows.largest(tensors[f"{n}.weight"]) + tensors[f"{n}.bias"]
            for n in range(len(WIDTHS))
        ]
        features: Tensor = self.dropout(torch.relu(torch.cat(pooled, 1)))
        return features

    def extremes(self, x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """Compute the largest and smallest responses of filters without bias.

        Args:
            x: word numbers, shape (batch, words), padded with 0 at the end.
            weights: filters of each width, shape (F, D, width).

        Returns:
            maximum and minimum over time for each of ``weights``, shape (2, batch, F).
        """
        kind = _Places if torch.compiler.is_compiling() else Windows
        windows = kind(x, self.table, max(WIDTHS))
        return [windows.extremes(weight) for weight in weights]

    def embed(self, x: Tensor) -> Tensor:
        """Average the word vectors of each document, shape (batch, D).

        Equation 6 of Chaudhary et al., Findings of EMNLP 2022.
        """
        return embedding_bag(x, self.table, mode="mean", padding_idx=0)
