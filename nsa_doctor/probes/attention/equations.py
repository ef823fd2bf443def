"""Each branch by its equation, as a dense product under an explicit mask: the reference for branches."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.geometry_rules import Rules


def branch_outputs(operands: Mapping[str, Tensor], rules: Rules, slots: Tensor | None = None) -> dict[str, Tensor]:
    """compressed, selected and sliding, each [B, S, H, Dv], of a subject's `anatomy`; `slots` hold the choice fixed."""
    q, length = operands["q"], operands["k_sel"].shape[1]
    rows = range(length - q.shape[1], length)
    num_compressed = operands["k_cmp"].shape[1]
    visible = _mask((rules.visible(t) for t in rows), num_compressed, q)[None, :, None]
    weights = attention_weights(q, operands["k_cmp"], visible)
    if slots is None:
        slots = best_slots(importance(weights.detach(), operands["k_cmp"].shape[2], length, rules), rules, rows.start)
    window = _mask((rules.window(t) for t in rows), length, q)[None, :, None]
    return {
        "compressed": weighted(weights, operands["v_cmp"]),
        "selected": masked_attention(q, operands["k_sel"], operands["v_sel"], readable_mask(slots, length, rules)),
        "sliding": masked_attention(q, operands["k_win"], operands["v_win"], window),
    }


def mixed(branches: Mapping[str, Tensor], gates: Tensor) -> Tensor:
    """Eq. 5: the branches, each times its weight; a group's heads stand side by side."""
    per_head = gates.repeat_interleave(branches["sliding"].shape[2] // gates.shape[2], dim=2)
    parts = (branches["compressed"], branches["selected"], branches["sliding"])
    return torch.stack([part * per_head[..., index, None] for index, part in enumerate(parts)]).sum(0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Probabilities [B, T, H, K] under a mask [B, T, G, K]; a row that sees nothing is exactly zero."""
    per_head = q.shape[2] // k.shape[2]
    hidden = ~mask.expand(q.shape[0], -1, k.shape[2], -1).repeat_interleave(per_head, dim=2)
    scores = torch.einsum("bthd,bkhd->bthk", q, k.repeat_interleave(per_head, dim=2)) / q.shape[-1] ** 0.5
    if not k.shape[1]:
        return scores
    return scores.masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1).masked_fill(hidden, 0)


def weighted(weights: Tensor, v: Tensor) -> Tensor:
    """[B, T, H, Dv]: the values under probabilities [B, T, H, K]."""
    return torch.einsum("bthk,bkhd->bthd", weights, v.repeat_interleave(weights.shape[2] // v.shape[2], dim=2))


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """[B, T, H, Dv]: softmax attention under a mask [B, T, G, K]."""
    return weighted(attention_weights(q, k, mask), v)


def importance(weights: Tensor, num_groups: int, length: int, rules: Rules) -> Tensor:
    """Eq. 9 and 10: [B, T, G, J] from probabilities [B, T, H, C], each counted once for every stride shared."""
    grouped = weights.unflatten(2, (num_groups, -1)).sum(3)
    shared = [
        [rules.shared_strides(block, j) for j in range(rules.num_blocks(length))] for block in range(weights.shape[-1])
    ]
    counts = torch.tensor(shared, dtype=weights.dtype, device=weights.device)
    return grouped @ counts.view(weights.shape[-1], rules.num_blocks(length))


def best_slots(scores: Tensor, rules: Rules, first_query: int) -> Tensor:
    """Eq. 11: slots [B, T, G, n] by importance [B, T, G, J], ascending, -1 last."""

    def filled(row: list[float], t: int) -> list[int]:
        chosen = rules.best(row, t)
        return chosen + [-1] * (rules.n_sel - len(chosen))

    slots = [
        [[filled(group, first_query + index) for group in query] for index, query in enumerate(row)]
        for row in scores.tolist()
    ]
    return torch.tensor(slots, dtype=torch.int64, device=scores.device)


def readable_mask(slots: Tensor, length: int, rules: Rules) -> Tensor:
    """Tokens [B, T, G, S] that the last T queries may read in their slots, each up to itself."""
    rows = range(length - slots.shape[1], length)
    chosen = torch.zeros(*slots.shape[:3], length, dtype=torch.bool, device=slots.device)
    for j in range(rules.num_blocks(length)):
        tokens = rules.block_tokens(j)
        chosen[..., tokens.start : tokens.stop] = (slots == j).any(-1, keepdim=True)
    return chosen & _mask((range(t + 1) for t in rows), length, slots)[None, :, None]


def finite_difference(result: Tensor, truth: Tensor) -> Tensor:
    """Largest absolute difference of each token, [B, S], in float64; infinite where it is not a number."""
    error = (result.detach().double() - truth.detach().double()).abs().flatten(2).amax(-1)
    return torch.where(isfinite(error), error, torch.inf)


def _mask(rows: Iterable[Iterable[int]], width: int, like: Tensor) -> Tensor:
    """What a row names beyond the width is not there to be seen."""
    lists = [[index for index in row if index < width] for row in rows]
    mask = torch.zeros(len(lists), width, dtype=torch.bool)
    for index, row in enumerate(lists):
        mask[index, row] = True
    return mask.to(like.device)
