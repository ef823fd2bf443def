"""How each parameter came to the values that it starts with: by torch's own defaults, as a constant, or on purpose."""

from types import FrameType
from typing import Any

from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments
from nsa_doctor.subject.contract import Subject

_OF_TORCH, _LIBRARYS, _OWN = 1, 2, 3  # ranks of code
_COPYING = frozenset({"to_copy", "clone", "copy_", "detach", "alias"})
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
_CONSTANT = frozenset(
    {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
)


def left_to_defaults(subject: Subject) -> tuple[nn.Module, dict[str, bool]]:
    """The subject built once more, and of its parameters those that nothing of its own gave values on purpose.

    They have what torch's modules start with, or are constants that none of its lines writes to again; True where
    nothing was ever written into their memory.
    """
    watch = _Writes(FrameFilter(subject.packages))
    seed_everything(subject.seed)
    with watch:
        module = ask("build", lambda: subject.build(subject.seed), None)
    kinds = {name: watch.kinds.get(memory_of(each), "empty") for name, each in module.named_parameters()}
    return module, {name: kind == "empty" for name, kind in kinds.items() if kind != "given"}


class _Writes(DispatchWatcher):
    """Notes of each piece of memory who last wrote it: `given`, `default`, `constant` or `empty`."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self.kinds: dict[int, str] = {}
        self._frames = frames
        self._held: list[Any] = []  # so that no memory is given out twice

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it writes."""
        given = [memory_of(each) for each in tensors_in(args, kwargs)]
        changed = {memory_of(each): each for each in tensors_in(*written_arguments(func, args, kwargs))}
        sources = [each for each in given if each not in changed]
        result = func(*args, **kwargs)
        changed |= {memory: each for each in tensors_in(result) if (memory := memory_of(each)) not in given}
        if changed:
            self._held += changed.values()
            name = operation_name(func)
            copied = [self.kinds[each] for each in sources if each in self.kinds]
            kind = copied[0] if name in _COPYING and copied else self._kind(name, frame_above(1))
            self.kinds |= dict.fromkeys(changed, kind)
        return result

    def _kind(self, name: str, frame: FrameType | None) -> str:
        if name in _EMPTY:
            return "empty"
        is_default = False
        while frame is not None:
            rank = self._frames.rank_of(frame.f_code)
            if rank == _OWN:
                break
            if rank == _LIBRARYS:
                return "given"
            is_default = is_default or (rank == _OF_TORCH and frame.f_code.co_name == "__init__")
            frame = frame.f_back
        return "default" if is_default else "constant" if name in _CONSTANT else "given"
