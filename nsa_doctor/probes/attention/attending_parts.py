"""Which parts of a module weigh tokens by products of tokens with tokens, as attention of any kind does."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_PRODUCTS = frozenset({"bmm", "mm", "matmul", "baddbmm", "einsum"})
_MOST_OTHERS = 16  # registers and the like beside tokens


def attending_parts(module: nn.Module, call: Callable[[], object], length: int) -> list[nn.Module]:
    """The innermost parts, torch's own apart, whose call makes a score of each of `length` tokens for each of them."""
    watch = _Products(length)
    before = register_module_forward_pre_hook(watch.enter)
    after = register_module_forward_hook(watch.leave, always_call=True)
    try:
        with watch:
            attempt(call)
    finally:
        before.remove()
        after.remove()
    own = {id(part) for part in module.modules()}
    return [part for part in watch.found if id(part) in own]


class _Products(DispatchWatcher):
    """Notes in whose call a product of all tokens with all tokens is taken."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.found: list[nn.Module] = []
        self._sizes = range(length, length + _MOST_OTHERS)
        self._open: list[nn.Module] = []

    def enter(self, part: nn.Module, _given: object) -> None:
        self._open.append(part)

    def leave(self, part: nn.Module, _given: object, _answer: object) -> None:
        while self._open and self._open.pop() is not part:
            continue

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and look at the shapes of what it reads and makes."""
        result = func(*args, **kwargs)
        if self._is_of_tokens(operation_name(func), tensors_in(args, kwargs), result):
            own = (part for part in reversed(self._open) if not type(part).__module__.startswith("torch."))
            holder = next(own, None)
            if holder is not None and all(holder is not each for each in self.found):
                self.found.append(holder)
        return result

    def _is_of_tokens(self, name: str, given: list[Tensor], result: object) -> bool:
        if "scaled_dot_product" in name and len(given) > 1:
            return given[0].ndim > 2 and given[0].shape[-2] in self._sizes and given[1].shape[-2] in self._sizes
        if name not in _PRODUCTS or not isinstance(result, Tensor) or result.ndim < 2:
            return False
        return all(size in self._sizes for size in result.shape[-2:])
