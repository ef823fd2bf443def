"""Which subject exactly: what makes two of them the same, and what does not."""

import pytest
from torch import nn

from nsa_doctor.probes.model.identity import made_of, shapes_of


class Mixer(nn.Module):
    def __init__(self, width=8, window=16, is_causal=True):
        super().__init__()
        self.out = nn.Linear(width, width)
        self.window, self.is_causal = window, is_causal
        self.hook = lambda x: x


def test_the_same_module_made_twice_is_the_same():
    assert made_of(Mixer()) == made_of(Mixer())


@pytest.mark.parametrize("setting", [{"width": 4}, {"window": 17}, {"is_causal": False}])
def test_another_shape_or_setting_is_another(setting):
    assert made_of(Mixer(**setting)) != made_of(Mixer())


def test_training_or_not_is_the_same():
    assert made_of(Mixer().eval()) == made_of(Mixer())


def test_shapes_go_by_the_names_a_checkpoint_has():
    assert shapes_of(Mixer(4)) == {"out.weight": (4, 4), "out.bias": (4,)}


def test_a_lazy_parameter_has_no_shape_yet():
    lazy = nn.LazyLinear(3)
    assert shapes_of(lazy) == {}
    assert made_of(lazy) == made_of(nn.LazyLinear(3))
