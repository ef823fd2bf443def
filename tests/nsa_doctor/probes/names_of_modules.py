"""Parts of a module are found by the paths that torch gives them, and take hooks where TorchScript compiled them."""

import warnings

import pytest
import torch
from torch import nn

from nsa_doctor.probes import internal


class NamedAsMethods(nn.Module):
    """A module whose parts bear names that nn.Module's methods have, as N-BEATS's `parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.half = nn.ModuleDict({"0": nn.Linear(2, 2)})
        self.parameters = nn.ParameterList([nn.Parameter(torch.ones(2))])  # type: ignore[assignment]


def parts_are_found_by_their_paths() -> None:
    root = NamedAsMethods()
    names = [f"{path}.{name}" for path, part in root.named_modules() for name in part._parameters]
    assert names == ["half.0.weight", "half.0.bias", "parameters.0"]
    assert internal.part_at(root, "") is root
    assert isinstance(internal.part_at(root, "half.0"), nn.Linear)
    assert internal.parameter_at(root, "half.0.weight").shape == (2, 2)
    assert internal.parameter_at(root, "parameters.0").shape == (2,)
    with pytest.raises(AttributeError, match="NamedAsMethods holds no module 'none'"):
        internal.part_at(root, "none.0")


def scripted_parts_take_hooks() -> None:
    internal.let_scripted_take_hooks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that TorchScript is no longer worked on
        part = torch.jit.script(nn.Linear(2, 3))
    assert internal.is_scripted(nn.Sequential(part))
    assert not internal.is_scripted(nn.Sequential(nn.Linear(2, 3)))
    seen: list[torch.Size] = []
    handle = part.register_forward_hook(lambda module, args, answer: seen.append(answer.shape))
    part(torch.ones(4, 2))
    handle.remove()
    part(torch.ones(5, 2))
    assert seen == [(4, 3)]
