"""Which parameters are codebooks: a pass takes the row of each that it chose by a comparison, as a quantiser does."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_CHOOSING = frozenset({"argmin", "argmax", "min", "max", "topk", "sort", "multinomial"})
_LOOKING_UP = frozenset({"embedding", "__getitem__", "index_select", "gather", "take_along_dim"})


def codebooks(sp: BuiltModule, x: Tensor) -> set[str]:
    """Names of the parameters whose rows one pass takes by what it chose."""
    watch = _Watch({id(each): name for name, each in sp.module.named_parameters()})

    def watched() -> None:
        with watch:
            sp(x)

    with unobserved():
        attempt(watched)
    return watch.found


class _Watch(TorchFunctionMode):
    """Follows choices to the look-ups that use them; a function mode is a base class by torch's design."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._names = names
        self._chosen: dict[int, Tensor] = {}  # by address of their memory; kept, so that no other comes to lie there

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function, and look at what it chooses or looks up."""
        answer = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _CHOOSING:
            whole = (each for each in tensors_in(answer) if not each.is_floating_point())
            self._chosen |= {_address(each): each for each in whole}
        elif name in _LOOKING_UP:
            given = tensors_in(args, kwargs or {})
            if any(_address(each) in self._chosen for each in given):
                self.found |= {self._names[id(each)] for each in given if id(each) in self._names}
        return answer


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
