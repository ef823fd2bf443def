"""Where a step takes the number of what parameters went into, by which their gradient ends."""

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places

_TAKING = (Tensor.item, Tensor.detach, Tensor.tolist, Tensor.numpy, Tensor.__float__, Tensor.data.__get__)  # type: ignore[attr-defined]


def first_number_taken(
    module: nn.Module, names: Collection[str], packages: tuple[str, ...], run: Callable[[], object]
) -> Place | None:
    """The first line of the subject's own that makes a number of a value of these parameters, or detaches it."""
    places = Places(FrameFilter(packages))
    places.know(module)
    watch = _Taken(places, [value for name, value in module.named_parameters() if name in names])
    with unobserved(), places.watching(), watch:
        attempt(run)
    return watch.place


class _Taken(TorchFunctionMode):
    def __init__(self, places: Places, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.place: Place | None = None
        self._places = places
        self._parameters = {id(each) for each in parameters}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        if self.place is None and func in _TAKING and isinstance(args[0], Tensor) and args[0].grad_fn is not None:
            here, is_own = self._places.here()
            if is_own and self._is_of_them(args[0].grad_fn):
                self.place = here
        return func(*args, **(kwargs or {}))

    def _is_of_them(self, node: Any) -> bool:
        waiting, seen = [node], set()
        while waiting:
            each = waiting.pop()
            if each is None or each in seen:
                continue
            seen.add(each)
            if id(getattr(each, "variable", None)) in self._parameters:
                return True
            waiting += [before for before, _ in each.next_functions]
        return False
