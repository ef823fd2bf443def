"""How fields of two states differ is said whatever dimension they grow along."""

import torch
from torch import Tensor

from nsa_doctor.probes.model.state_fields import Field
from nsa_doctor.probes.numerics.field_difference import difference


def _field(value: Tensor) -> Field:
    return Field("cache.weights", (), value)


def test_maps_of_scores_that_grow_along_their_last_dimension_are_compared() -> None:
    whole = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    found = difference("cache.weights", _field(whole), _field(whole[:, :, -1:]), dimension=3)
    assert found is None
    other = difference("cache.weights", _field(whole), _field(whole[:, :, -1:] + 1), dimension=3)
    assert other is not None
    assert (other.dimension, other.position, other.num_compared) == (3, 0, 6)
