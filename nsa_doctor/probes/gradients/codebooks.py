"""Which parameters are codebooks: a pass takes the row of each that it chose by a comparison, as a quantiser does."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_CHOOSING = frozenset({"argmin", "argmax", "min", "max", "topk", "sort", "multinomial"})
_CASTING = frozenset({"one_hot", "type", "type_as", "to", "float", "double", "__getitem__"})
_LOOKING_UP = frozenset({
    "embedding", "__getitem__", "index_select", "gather", "take_along_dim", "einsum", "matmul", "__matmul__", "mm",
    "bmm",
})  # fmt: skip


def codebooks(sp: BuiltModule, x: Tensor) -> set[str]:
    """Names of the parameters whose rows one pass takes by what it chose."""
    watch = _Watch({memory_of(each): name for name, each in sp.module.named_parameters()})

    def watched() -> None:
        with watch:
            sp(x)

    with unobserved():
        attempt(watched)
    return watch.found


class _Watch(TorchFunctionMode):
    """Follows choices to the look-ups that use them; a function mode is a base class by torch's design."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._names, self._cast = names, list[Tensor]()
        self._chosen: dict[int, Tensor] = {}  # by their memory; kept, so that no other comes to lie there

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function, and look at what it chooses or looks up."""
        answer = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _CHOOSING:
            self._chosen |= {memory_of(each): each for each in tensors_in(answer) if not each.is_floating_point()}
        elif name in _CASTING | _LOOKING_UP:
            given = {memory_of(each) for each in tensors_in(args, kwargs or {})}
            tables = {self._names[each] for each in given if each in self._names}
            is_chosen = not given.isdisjoint(self._chosen)
            if name in _LOOKING_UP and is_chosen:
                self.found |= tables
            for each in tensors_in(answer) if name in _CASTING else ():
                if is_chosen and not tables:
                    self._chosen[memory_of(each)] = each
                elif tables and not is_chosen:
                    self._names[memory_of(each)] = next(iter(tables))
                    self._cast.append(each)
        return answer
