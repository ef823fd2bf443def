"""The tensors that operations take and return, as torch's own pytree finds them in what operations nest."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nsa_doctor.probes.tensors.operations import tensors_in

A, B, C = (torch.zeros(n) for n in (1, 2, 3))


@pytest.mark.parametrize(
    "value",
    [
        A,
        (A, [B, (C,)], {"out": B, "more": [A, None]}),
        torch.zeros(2, 2).max(dim=0),
        [None, 1.5, "text", slice(2), torch.float32, [], {}],
        ((A, A), {"x": A}),
        torch.nn.Parameter(A),
    ],
    ids=["one", "nested", "named tuple", "none", "again", "parameter"],
)
def test_they_are_those_of_pytree_in_its_order(value: object) -> None:
    expected = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    found = tensors_in(value)
    assert list(map(id, found)) == list(map(id, expected))
