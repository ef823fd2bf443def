"""How many questions about a needle are answered, by how deep it lies; for batches that ask any."""

from collections.abc import Sequence

import torch

from nsa.data import Batch
from nsa.nn import Transformer
from nsa.train.record import DepthRecord
from nsa.train.world import World

NUM_DEPTHS = 8


@torch.no_grad()
def answers_by_depth(model: Transformer, batches: Sequence[Batch], world: World, step: int) -> list[DepthRecord]:
    """A record for each eighth of the depth that was asked about, over all processes; none where nothing is asked."""
    device = next(model.parameters()).device
    asked, right = torch.zeros(NUM_DEPTHS), torch.zeros(NUM_DEPTHS)
    for batch in batches:
        if batch.answers is None:
            continue
        columns, depths = batch.answers.columns, batch.answers.depths
        row, question = (columns >= 0).nonzero(as_tuple=True)
        column = columns[row, question]
        hidden = model.hidden_states(batch.tokens[:, :-1].to(device))
        logits = model.logits(hidden[row.to(device), column.to(device)][None])[0]
        is_right = logits.argmax(-1).cpu() == batch.tokens[row, column + 1]
        depth = (depths[row, question] * NUM_DEPTHS).long().clamp(0, NUM_DEPTHS - 1)
        asked += torch.bincount(depth, minlength=NUM_DEPTHS)
        right += torch.bincount(depth[is_right], minlength=NUM_DEPTHS)
    totals = torch.tensor(world.total_of_rows(asked.tolist() + right.tolist())).reshape(2, NUM_DEPTHS).tolist()
    return [
        DepthRecord(step=step, depth=index / NUM_DEPTHS, asked=int(questions), right=int(answered))
        for index, (questions, answered) in enumerate(zip(*totals, strict=True))
        if questions
    ]
