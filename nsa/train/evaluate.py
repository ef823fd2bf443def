"""The loss on rows that were held out, and a sample of what the model writes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nsa.data import Batch
from nsa.nn import Transformer, generate
from nsa.train.objective import num_targets
from nsa.train.world import World

_LONGEST_PROMPT = 64
_TEMPERATURE = 0.8


@torch.no_grad()
def held_out_loss(called: nn.Module, batches: Sequence[Batch], world: World, device: torch.device) -> float:
    """The mean over all targets of all processes, in nats."""
    loss, count = 0.0, 0
    for batch in batches:
        loss += float(called(batch.tokens.to(device), batch.documents.to(device)))
        count += num_targets(batch.documents)
    total = sum(each[0] for each in world.gather([loss]))
    return total / max(world.total_of_rows([float(count)])[0], 1.0)


def write_on(model: Transformer, batch: Batch, num_tokens: int, seed: int) -> tuple[list[int], list[int]]:
    """A prompt from the first held-out row, and the tokens that the model continues it with; same seed, same tokens."""
    device = next(model.parameters()).device
    prompt = batch.tokens[:1, : max(1, min(_LONGEST_PROMPT, batch.tokens.shape[1] // 2))].to(device)
    generator = torch.Generator(device).manual_seed(seed)
    longer: Tensor = generate(model, prompt, num_tokens, temperature=_TEMPERATURE, generator=generator)
    ids = longer[0].tolist()
    return ids[: prompt.shape[1]], ids[prompt.shape[1] :]
