"""Gradients below the mixers are a tenth of what they should be: a hook from a debugging day is still registered."""

from tests.gallery.hosts.recurrence import Layer, RecurrentStack

MODULE = ("blocks.0", "blocks.1", "blocks.0.norm", "blocks.1.norm")
CODES = {"GRD101"}


class Hooked(Layer):
    def forward(self, x, state=None):
        h = self.norm(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 0.1)  # here
        y, state = self.mixer(h, state)
        return x + y, state


def make():
    return RecurrentStack(layer=Hooked)
