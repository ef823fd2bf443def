"""Watches what autograd keeps for backward: what each tensor held when it was saved, and what it holds when used."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import saved_tensors_hooks

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import watched_saves
from nsa_doctor.probes.internal import functions_applied_by, running_node, uncompiled, version_of

Around = Callable[[str, Callable[[], Any], tuple[Any, ...]], Any]


@dataclass(eq=False)
class Saved:
    """One tensor kept for backward; `index` counts in the order of saving, which repeats with the seed.

    `tensor` shares memory and version counter with what was saved, `snapshot` holds its values at that time. `keeper`
    is the attribute of a custom Function's `ctx` that holds it, where autograd itself does not and checks no version.
    `operation` is whose backward used it, "" while none has; the fields after it say how it was found then.
    """

    index: int
    tensor: Tensor
    version: int
    snapshot: Tensor
    place: Place = field(default_factory=Place)
    keeper: str = ""
    operation: str = ""
    num_changed: int = 0
    is_bumped: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether autograd's own check refuses it: it was written into, and its version says so."""
        return bool(self.operation) and self.is_bumped and not self.keeper

    @property
    def is_silent(self) -> bool:
        """Whether backward used other values than were saved, and nothing noticed."""
        return bool(self.operation) and self.num_changed > 0 and not self.is_refused


class Watch(Protocol):
    """What may look on at one forward and backward pass."""

    def know(self, module: nn.Module) -> None:
        """Called once, before the pass."""
        ...

    def watching(self) -> AbstractContextManager[None]:
        """A region around forward and backward."""
        ...

    def follow(self, loss: Tensor) -> None:
        """Called between the two, where the loss can be seen."""
        ...


class SavedWatch:
    """Keeps a snapshot of every tensor saved in a pass; autograd's check of versions is off meanwhile.

    Tensors whose index is in `restored` are given to backward as they were saved.
    """

    def __init__(self, restored: frozenset[int] = frozenset()) -> None:
        self.saved: list[Saved] = []
        self._restored = restored
        self._snapshots: dict[tuple[Any, ...], Tensor] = {}

    def know(self, module: nn.Module) -> None:
        """Learn nothing."""

    def follow(self, loss: Tensor) -> None:
        """Follow nothing."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is saved by operations, and what custom Functions hold in their ctx."""
        hooks = saved_tensors_hooks(self._pack, self._unpack)
        with uncompiled(), functions_seen(self._see_function), hooks, watched_saves():
            yield

    def note(self, tensor: Tensor, keeper: str = "") -> Saved:
        """Remember a tensor as it is now."""
        saved = Saved(len(self.saved), tensor, version_of(tensor), self._snapshot(tensor), keeper=keeper)
        self.saved.append(saved)
        return saved

    def look(self, saved: Saved, operation: str) -> Tensor:
        """Compare with the snapshot at the time of use; what backward is to go on with."""
        saved.operation = saved.operation or operation
        saved.num_changed = max(saved.num_changed, num_differing(saved.tensor, saved.snapshot))
        saved.is_bumped = saved.is_bumped or version_of(saved.tensor) != saved.version
        return saved.snapshot if saved.index in self._restored else saved.tensor

    def _pack(self, tensor: Tensor) -> "Saved | Tensor":
        return self.note(tensor) if is_plain(tensor) else tensor

    def _unpack(self, packed: "Saved | Tensor") -> Tensor:
        return self.look(packed, running_operation()) if isinstance(packed, Saved) else packed

    def _see_function(self, ctx: FunctionCtx) -> None:
        for name, value in list(vars(ctx).items()):
            held = value if isinstance(value, (tuple, list)) else [value]
            noted = [self.note(item, name) if is_plain(item) else None for item in held]
            if any(noted):
                before = self._before_use(ctx, name, value, noted)
                ctx.register_prehook(before)  # type: ignore[attr-defined]

    def _before_use(
        self, ctx: FunctionCtx, name: str, value: Any, noted: "list[Saved | None]"
    ) -> Callable[[Any], None]:
        def look(_gradients: Any) -> None:
            found = [item if item is None else self.look(item, running_operation()) for item in noted]
            if any(item is not None and item.index in self._restored for item in noted):
                if not isinstance(value, (tuple, list)):
                    setattr(ctx, name, found[0])
                    return
                whole = [old if tensor is None else tensor for old, tensor in zip(value, found, strict=True)]
                setattr(ctx, name, type(value)(whole))

        return look

    def _snapshot(self, tensor: Tensor) -> Tensor:
        """A copy; the last one again for memory that is saved again unchanged, as weights are."""
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._snapshots.get(key)
        if known is None or num_differing(tensor, known):
            with torch.no_grad():
                known = self._snapshots[key] = tensor.detach().clone()
        return known


def num_differing(a: Tensor, b: Tensor) -> int:
    """How many elements differ; NaN equals NaN."""
    with torch.no_grad():
        a, b = a.detach(), b.detach()
        if a.shape != b.shape:
            return max(a.numel(), 1)
        if torch.equal(a, b):
            return 0
        same = a == b
        if a.is_floating_point() or a.is_complex():
            same = same | ((a != a) & (b != b))
        return int((~same).sum())


def is_plain(value: object) -> bool:
    """Whether this is a dense tensor with memory behind it."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter, nn.Buffer)
        and value.layout == torch.strided
        and value.device.type != "meta"
        and value.numel() > 0
    )


def running_operation() -> str:
    """The operation whose backward is running: sigmoid for SigmoidBackward0."""
    node = running_node()
    return "backward" if node is None else operation_of(node.name())


def operation_of(node: str) -> str:
    """The plain name of an operation by its node's."""
    name = re.sub(r"Backward\d*$", "", node.rpartition("::")[2])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if name else node


@contextmanager
def functions_seen(see: Callable[[FunctionCtx], None], around: Around | None = None) -> Iterator[None]:
    """Show the ctx of every custom Function once it has run forward: each one's `super().apply` comes through here.

    `around`, given the Function's name, a call that applies it and its arguments, is to make that call.
    """

    def apply(cls: type, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        output = run() if around is None else around(cls.__name__, run, args)
        outputs = output if isinstance(output, (tuple, list)) else [output]
        seen = {id(t.grad_fn): t.grad_fn for t in outputs if isinstance(t, Tensor) and t.grad_fn is not None}
        for ctx in seen.values():
            if isinstance(ctx, FunctionCtx):
                see(ctx)
        return output

    with functions_applied_by(apply):
        yield
