"""Projections whose weights are split into length and direction."""

from torch.nn.utils.parametrizations import weight_norm

from tests.gallery.hosts.recurrence import RecurrentStack


def make():
    model = RecurrentStack()
    for block in model.blocks:
        weight_norm(block.mixer.to_input)
        weight_norm(block.mixer.out)
    return model
