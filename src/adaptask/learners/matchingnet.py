"""Matching networks: attention over the support set."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from adaptask.arguments import check_integer, check_number
from adaptask.backbones import Backbone
from adaptask.learners.base import EmbeddingLearner, check_backbone


class MatchingNet(EmbeddingLearner):
    """Classify queries by how much of their attention falls on the images of each class.

    A query attends to support image i with a(i) = softmax_i(scale * cosine(f(x), g(x_i))). The
    logits are the logarithms of the sums of a over each class, so that their softmax is the
    attention.

    Vinyals et al., *Matching Networks for One Shot Learning* (2016). Full context embeddings run
    LSTMs over the support set in the given order; `order_free` is then False.

    Args:
        backbone: Maps images to features.
        attention_scale: Multiplies the cosines before the softmax.
        full_context: Let features depend on the whole support set, by LSTMs.
        n_reads: With full context: how often a query reads the support set, K in the paper.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    description: ClassVar[str] = "attends over the support images (Vinyals et al. 2016)"

    def __init__(
        self,
        *,
        backbone: Backbone,
        attention_scale: float = 100.0,
        full_context: bool = False,
        n_reads: int = 5,
    ) -> None:
        super().__init__(backbone=backbone)
        self.attention_scale = check_number("attention_scale", attention_scale, low=1e-3, high=1e4)
        n_reads = check_integer("n_reads", n_reads, low=1)
        self.order_free = not full_context
        self.context: FullContext | None = None
        if full_context:
            check_backbone(backbone, "n_features")
            self.context = FullContext(backbone.n_features, n_reads=n_reads)

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the logarithm of the attention that each class gets."""
        n_way, n_shot = support.shape[1:3]
        support = support.flatten(1, 2)
        if self.context is not None:
            support, query = self.context(support, query)
        cosines = normalize(query, dim=-1) @ normalize(support, dim=-1).transpose(1, 2)
        log_attention = (self.attention_scale * cosines).log_softmax(-1)
        return torch.unflatten(log_attention, -1, (n_way, n_shot)).logsumexp(-1)


class FullContext(nn.Module):
    """Full context embeddings: LSTMs that let features depend on the whole support set.

    Support (Vinyals et al., appendix A.2): g(x_i) = forward_i + backward_i + g'(x_i), the outputs
    of a bidirectional LSTM over the support set added to the feature.

    Query (appendix A.1), `n_reads` times from h = f'(x), c = 0: read r = sum_i a_i g(x_i) with
    a = softmax_i(h g(x_i)), then h <- LSTM([f'(x), r], h, c) + f'(x).
    """

    def __init__(self, n_features: int, *, n_reads: int) -> None:
        super().__init__()
        self.forwards = nn.LSTMCell(n_features, n_features)
        self.backwards = nn.LSTMCell(n_features, n_features)
        self.query_lstm = nn.LSTMCell(2 * n_features, n_features)
        self.n_reads = n_reads

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return features in context, in the shapes of the arguments.

        Args:
            support: `tasks x support x features`.
            query: `tasks x queries x features`.
        """
        support = support + self._both_ways(support)
        lstm = self.query_lstm
        of_query, of_read = lstm.weight_ih.chunk(2, dim=1)
        from_query = linear(query, of_query, lstm.bias_ih + lstm.bias_hh)
        weight = torch.cat((of_read, lstm.weight_hh), dim=1)
        output, cell = query, torch.zeros_like(query)
        for _ in range(self.n_reads):
            read = (output @ support.transpose(1, 2)).softmax(-1) @ support
            gates = from_query + linear(torch.cat((read, output), dim=-1), weight)
            hidden, cell = _lstm_step(gates, cell)
            output = hidden + query
        return support, output

    def _both_ways(self, support: Tensor) -> Tensor:
        """Return the sum of the outputs of the forward and the backward LSTM.

        Both advance together, step by step: torch's own LSTM takes many more kernels, which no
        compiler can fuse.
        """
        both = ((self.forwards, support), (self.backwards, support.flip(1)))
        gates = torch.stack([linear(x, m.weight_ih, m.bias_ih + m.bias_hh) for m, x in both])
        weight = torch.stack([lstm.weight_hh.T for lstm, _ in both])
        hidden = cell = torch.zeros_like(support[:, 0]).expand(2, -1, -1)
        outputs = []
        for step in range(support.shape[1]):
            hidden, cell = _lstm_step(torch.baddbmm(gates[:, :, step], hidden, weight), cell)
            outputs.append(hidden)
        forwards, backwards = torch.stack(outputs, dim=2).unbind()
        return forwards + backwards.flip(1)


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and cell of an LSTM from its summed inputs, `... x (4 features)`."""
    enter, forget, value, leave = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * cell.tanh(), cell
