"""A model that refuses any dtype but float32."""

import torch

from tests.gallery.hosts.recurrence import RecurrentStack


class Strict(RecurrentStack):
    def forward(self, x):
        if x.dtype is not torch.float32:
            raise TypeError(f"expected float32, got {x.dtype}")
        return super().forward(x)


def make():
    return Strict()
