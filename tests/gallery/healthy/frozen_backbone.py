"""Everything but the last layer and the head is frozen."""

from tests.gallery.hosts.llama import Llama


def make():
    model = Llama()
    model.embed.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    return model
