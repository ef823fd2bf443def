"""What torch makes of a call in a pickle that rebuilds a tensor: the same tensor, or the reason why it is not read.

Where torch would raise, the file is corrupt; where torch would make something else than a plain view of stored values,
the tensor is known and its values are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nsa_doctor.artifacts.checkpoint.contents import Composed, Quantised, Stored
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES
from nsa_doctor.artifacts.checkpoint.extents import check_extent
from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, quoted
from nsa_doctor.artifacts.checkpoint.limits import LARGEST_SIZE, MOST_NESTING
from nsa_doctor.artifacts.checkpoint.pickled_values import Kept, Made, Name, Table
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.symbols import DTYPES, MADE_AS_TENSORS, OWN_ATTRIBUTES, STORAGES

_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_PER_TENSOR, _PER_CHANNEL = "torch.per_tensor_affine", "torch.per_channel_affine"
_FLOAT_PARAMETERS = "torch.per_channel_affine_float_qparams"
_PACKED = ("quint4x2", "quint2x4")  # several values to a byte, and the shape counts values
_OF_PROCESSES = ("torch.distributed.tensor.DTensor",)
Rebuilt = Stored | Composed


@dataclass(frozen=True, kw_only=True)
class Storages:
    """The bytes that tensors may lie in, by key; `name` is the file's, `kinds` what each was first described as."""

    name: str
    windows: Mapping[str, Source]
    is_swapped: bool = False
    kinds: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Storage:
    source: Source
    dtype: str
    is_typed: bool


def rebuilt(name: str, node: Any, storages: Storages) -> Rebuilt | None:
    """The tensor of that name that torch makes of `node`, None where it makes none; raises the fault of a wrong one."""
    if isinstance(node, Kept):
        return _Rebuilding(name, storages).bare(node)
    if isinstance(node, Made) and node.name in MADE_AS_TENSORS:
        return _Rebuilding(name, storages).tensor(node)
    return None


class _Rebuilding:
    """One tensor of one file."""

    def __init__(self, name: str, storages: Storages, depth: int = 0) -> None:
        self._name, self._storages, self._depth = name, storages, depth

    def bare(self, kept: Kept) -> Stored:
        """A storage that is saved as it is, as the row of its values."""
        storage = self._storage(kept)
        count = storage.source.num_bytes // BYTES[storage.dtype]
        return self._stored(storage, storage.dtype, 0, (count,), (1,))

    def tensor(self, node: Any) -> Rebuilt:
        """What a call makes; a tensor inside of another call is made first."""
        if self._depth > MOST_NESTING:
            raise FaultError("limit", f"{self._storages.name} nests tensors more than {MOST_NESTING} deep")
        if not isinstance(node, Made) or node.name not in MADE_AS_TENSORS or not isinstance(node.arguments, tuple):
            raise self._broken()
        if node.state is not None or node.items or node.pairs:
            return self._changed("it is changed after it is made, which is not followed")
        match node.name.rpartition(".")[2], *node.arguments:
            case "_rebuild_tensor", kept, first, shape, strides:
                return self._view(kept, first, shape, strides)
            case "_rebuild_tensor_v2", kept, first, shape, strides, grad, hooks, *more if len(more) < 2:
                return self._asked(self._view(kept, first, shape, strides), grad, hooks, more)
            case "_rebuild_tensor_v3", kept, first, shape, strides, grad, hooks, dtype, *more if len(more) < 2:
                made = self._view(kept, first, shape, strides, self._dtype(dtype))
                return self._asked(made, grad, hooks, more)
            case "_rebuild_qtensor", kept, first, shape, strides, parameters, grad, hooks:
                return self._asked(self._quantised(kept, first, shape, strides, parameters), grad, hooks, [])
            case "_rebuild_parameter", data, grad, hooks:
                return self._asked(self._inner(data), grad, hooks, [])
            case "_rebuild_parameter_with_state", data, grad, hooks, state:
                return self._in_state(self._asked(self._inner(data), grad, hooks, []), state)
            case "_rebuild_from_type_v2", Name() as function, Name() as kind, tuple() as arguments, state:
                return self._of_class(Made(function.text, arguments), kind.text, state)
            case "_rebuild_device_tensor_from_cpu_tensor", data, dtype, _, grad:
                return self._converted(self._asked(self._inner(data), grad, None, []), self._dtype(dtype))
            case "_rebuild_meta_tensor_no_storage", dtype, shape, strides, _:
                why = "it is a meta tensor, without values"
                return self._unread(why, self._dtype(dtype), self._shape(shape, strides)[0])
            case "_rebuild_wrapper_subclass", _, dtype, shape, strides, *_ if len(node.arguments) == 8:
                why = "it is a wrapper of other tensors"
                return self._unread(why, self._dtype(dtype), self._sizes(shape))
            case "_rebuild_sparse_tensor", Made(arguments=(str() as layout,)), tuple() as data:
                return self._sparse(layout.removeprefix("torch."), data)
            case "_rebuild_nested_tensor", _, _, _, _:
                return self._unread("it is nested: its rows differ in length")
            case "_rebuild_njt", *_:
                return self._unread("it is nested: its rows differ in length")
            case "_rebuild_device_tensor_from_numpy", _, _, _, _:
                return self._unread("it is stored as a numpy array")
            case "Parameter", data, *grad if len(grad) < 2:
                return self._asked(self._inner(data), grad[0] if grad else True, None, [])
            case kind, *_ if not kind.startswith("_rebuild"):
                return self._changed(f"it is made by calling {quoted(node.name)}, as torch.save does no more")
        raise self._broken()

    def _inner(self, node: Any) -> Rebuilt:
        return _Rebuilding(self._name, self._storages, self._depth + 1).tensor(node)

    def _view(self, kept: Any, first: Any, shape: Any, strides: Any, dtype: str = "") -> Stored:
        storage = self._storage(kept)
        sizes, steps = self._shape(shape, strides)
        if type(first) is not int or not 0 <= first <= LARGEST_SIZE:
            raise self._broken()
        made = self._stored(storage, dtype or storage.dtype, first, sizes, steps)
        if self._storages.is_swapped and not storage.is_typed and BYTES[made.dtype] > 1:
            return replace(made, unread="its storage has no dtype, so that torch leaves it in the other byte order")
        return made

    def _stored(
        self, storage: _Storage, dtype: str, first: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Stored:
        made = Stored(
            name=self._name,
            dtype=dtype,
            shape=shape,
            strides=strides,
            storage=storage.source,
            first=first,
            is_swapped=self._storages.is_swapped,
        )
        if dtype in _PACKED:
            return replace(made, unread=f"its values are packed, several to a byte ({dtype})")
        check_extent(made)
        return replace(made, unread="it is quantised without a scale") if dtype.startswith("q") else made

    def _asked(self, made: Rebuilt, grad: Any, hooks: Any, more: list[Any]) -> Rebuilt:
        """With what goes along with a tensor: whether it gets a gradient, and the bits that change what is stored."""
        if type(grad) is not bool or (grad and made.dtype and not _has_gradient(made.dtype)):
            raise self._broken()
        if not isinstance(hooks, Made | Table | None):
            raise self._broken()
        said = more[0] if more else None
        if said is None or (isinstance(said, Table) and not said.pairs):
            return made
        if not isinstance(said, Table):
            raise self._broken()
        names = {key for key, _ in said.pairs if type(key) is str}
        if "conj" in names and made.dtype and not made.dtype.startswith("complex"):
            raise self._broken()
        bits = ", ".join(map(quoted, sorted(names)[:2]))
        return replace(made, unread=made.unread or f"it is stored with the bits {bits} set, which change its values")

    def _in_state(self, made: Rebuilt, state: Any) -> Rebuilt:
        """With attributes set on it."""
        tables = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        if not all(isinstance(each, Table | None) for each in tables):
            raise self._broken()
        names = {key for each in tables if each is not None for key, _ in each.pairs}
        if any(type(name) is not str or name in OWN_ATTRIBUTES for name in names):
            return self._changed("an attribute that is its own is set after it is made, which is not followed")
        return made

    def _of_class(self, node: Made, kind: str, state: Any) -> Rebuilt:
        made = self._inner(node)
        if kind in _PLAIN_CLASSES:
            return self._in_state(made, state)
        of = "one process's part of a distributed tensor" if kind in _OF_PROCESSES else f"a {quoted(kind)}"
        is_opaque = isinstance(made, Composed) and made.is_opaque
        return replace(self._unread(f"it is {of}", made.dtype, made.shape), is_opaque=is_opaque)

    def _converted(self, made: Rebuilt, dtype: str) -> Rebuilt:
        if made.dtype == dtype:
            return made
        why = made.unread or f"it is stored as {made.dtype} and becomes {dtype}, which is not followed"
        return replace(self._changed(why), dtype=dtype, shape=made.shape)

    def _quantised(self, kept: Any, first: Any, shape: Any, strides: Any, parameters: Any) -> Stored:
        made = self._view(kept, first, shape, strides)
        made = made if made.dtype in _PACKED else replace(made, unread="")
        if not made.dtype.startswith("q") or not isinstance(parameters, tuple):
            raise self._broken()
        match parameters:
            case Name(text=scheme), float() | int() as scale, int() as zero if scheme == _PER_TENSOR:
                return replace(made, quantised=Quantised(scales=float(scale), zeros=float(zero)))
            case Name(text=scheme), scales, zeros, int() as axis if scheme in (_PER_CHANNEL, _FLOAT_PARAMETERS):
                per_index = (self._along(scales, made, axis), self._along(zeros, made, axis))
                return replace(made, quantised=Quantised(scales=per_index[0], zeros=per_index[1], axis=axis))
        raise self._broken()

    def _sparse(self, layout: str, data: tuple[Any, ...]) -> Composed:
        num_indices = 1 if layout == "sparse_coo" else 2
        if len(data) < num_indices + 2:
            raise self._broken()
        return self._unread(f"it is sparse ({layout})", shape=self._sizes(data[num_indices + 1]))

    def _along(self, node: Any, of: Stored, axis: int) -> Stored:
        """The scales or zeros of each index along an axis."""
        made = self._inner(node)
        if not 0 <= axis < len(of.shape) or made.shape != (of.shape[axis],):
            raise self._broken()
        if not isinstance(made, Stored) or made.unread:
            raise FaultError("unsupported", f"{self._storages.name}: the scales of {quoted(self._name)} are not read")
        return made

    def _storage(self, kept: Any) -> _Storage:
        """The bytes that a persistent id stands for, held against what it says of them."""
        match kept:
            case Kept(key=("storage", Name(text=kind), str() as entry, str(), int() as count)):
                pass
            case _:
                raise self._broken()
        dtype = STORAGES.get(kind)
        if dtype is None or count < 0 or type(count) is not int:
            raise self._broken()
        where, source = self._storages.name, self._storages.windows.get(entry)
        if source is None:
            raise corrupt(where, f"the values of {quoted(self._name)} are missing (entry {quoted(entry)})")
        size = BYTES[dtype or "uint8"]
        if count * size != source.num_bytes:
            claimed = f"{count * size:,}" if count <= LARGEST_SIZE else "more than any"
            what = f"has {source.num_bytes:,} bytes and not {claimed}"
            raise corrupt(where, f"the storage of {quoted(self._name)} {what}")
        if count and self._storages.kinds.setdefault(entry, kind) != kind:
            both = f"{quoted(self._storages.kinds[entry])} and {quoted(kind)}"
            raise corrupt(where, f"the storage of {quoted(self._name)} is both {both}, and torch takes the first")
        return _Storage(source, dtype or "uint8", is_typed=bool(dtype))

    def _shape(self, shape: Any, strides: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sizes, steps = self._sizes(shape), self._sizes(strides)
        if len(sizes) != len(steps):
            raise self._broken()
        return sizes, steps

    def _sizes(self, node: Any) -> tuple[int, ...]:
        """Whole numbers from zero on, as a tuple or a torch.Size; no list, which may change after it was given."""
        match node:
            case Made(name="torch.Size", arguments=(tuple() as node,)):
                pass
        if not isinstance(node, tuple) or not all(type(size) is int and size >= 0 for size in node):
            raise self._broken()
        return node

    def _dtype(self, node: Any) -> str:
        if not isinstance(node, Name) or node.text not in DTYPES:
            raise self._broken()
        return node.text.removeprefix("torch.")

    def _unread(self, why: str, dtype: str = "", shape: tuple[int, ...] = ()) -> Composed:
        return Composed(name=self._name, dtype=dtype, shape=shape, unread=why)

    def _changed(self, why: str) -> Composed:
        """What is made of more than the values that are stored for it."""
        return replace(self._unread(why), is_opaque=True)

    def _broken(self) -> FaultError:
        return corrupt(self._storages.name, f"the description of {quoted(self._name)} makes no sense")


def _has_gradient(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
