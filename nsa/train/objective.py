"""What training minimises: the cross-entropy of the next token, summed, and how many tokens it was summed over."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from nsa.backends import why_not_triton
from nsa.nn import Context, Transformer

_IGNORED = -100
_MOST_LOGITS, _MOST_LOGITS_ON_A_GPU = 1 << 27, 1 << 28  # at a time: half a gigabyte in float32, and one


class Objective(nn.Module):
    """A model with its loss; one module, so that what spreads a model over processes sees every call of it.

    checkpointing: keep a block's input alone for the backward pass, and compute its inside again. context: the
    processes that share each row; each computes the loss of its own part.
    """

    def __init__(self, model: Transformer, *, checkpointing: bool = False, context: Context | None = None) -> None:
        super().__init__()
        self.model, self.context = model, context
        if checkpointing:
            for block in model.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def forward(self, tokens: Int[Tensor, "B longer"], documents: Int[Tensor, "B longer"]) -> Float[Tensor, ""]:
        """The loss summed over all targets of this process; logits are made and dropped again in parts that fit."""
        targets = self.own(next_tokens(tokens, documents)).flatten()
        hidden = self.model.hidden_states(self.own(tokens[:, :-1]), context=self.context).flatten(0, 1)
        most = _MOST_LOGITS_ON_A_GPU if hidden.is_cuda else _MOST_LOGITS
        rows = max(1, most // self.model.config.vocab_size)
        if hidden.shape[0] <= rows:
            return self._summed(hidden, targets)
        parts = zip(hidden.split(rows), targets.split(rows), strict=True)
        return torch.stack([checkpoint(self._summed, *part, use_reentrant=False) for part in parts]).sum()

    def own(self, per_token: Int[Tensor, "B S"]) -> Int[Tensor, "B T"]:
        """The part of whole rows that is this process's."""
        return per_token if self.context is None else self.context.own(per_token)

    def _summed(self, hidden: Float[Tensor, "N dim"], targets: Int[Tensor, " N"]) -> Float[Tensor, ""]:
        logits = self.model.logits(hidden[None])[0]
        if why_not_triton(logits.device, logits.dtype, 1) is None:
            from nsa.train.loss_kernels import cross_entropy as by_kernel  # where there is no Triton nothing leads here

            return by_kernel(logits, targets, _IGNORED).sum()
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # A sum of its own: the reduction that torch fuses here has one block of a GPU do all the work.
        return cross_entropy(wide, targets, ignore_index=_IGNORED, reduction="none").sum()


def next_tokens(tokens: Int[Tensor, "B longer"], documents: Int[Tensor, "B longer"]) -> Int[Tensor, "B S"]:
    """For every token but the last the one after it; none where that begins another document."""
    is_boundary = documents[:, 1:] != documents[:, :-1]
    return tokens[:, 1:].masked_fill(is_boundary, _IGNORED)


def num_targets(documents: Int[Tensor, "B longer"]) -> int:
    """How many tokens of a batch have to be predicted."""
    return int((documents[:, 1:] == documents[:, :-1]).sum())
