"""What the doctor takes from torch that torch does not promise: its private names are used here alone.

Each function says what it takes and which public name there is for it. All are known of torch 2.13;
`tests/nsa_doctor/probes/test_internal.py` says of each what the doctor loses without it. Those of CPython are in
`core/internal.py`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Self, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.jit._script import RecursiveScriptModule
from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef  # undocumented; public: none
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves as tree_leaves  # public: `torch.utils.pytree`, not in every torch
from torch.utils._pytree import tree_map as tree_map
from torch.utils.flop_counter import flop_registry

from nsa_doctor.core.internal import frame_above, may_compile

NORMS_BY_BATCH = _NormBase  # batch and instance norm; public: their dozen classes, but not what users derive from it
DROPOUTS = _DropoutNd  # likewise
PARAMETERS, BUFFERS, MODULES = REGISTRIES = "_parameters", "_buffers", "_modules"  # where nn.Module registers them

_METHODS_OF_HOOKS = (
    *("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
    *("register_full_backward_pre_hook", "_get_backward_hooks", "_get_backward_pre_hooks"),
    "_maybe_warn_non_full_backward_hook",
)


class DispatchWatcher(TorchDispatchMode):
    """Sees every operation while it is entered; what watches defines `run_operation`. Public: none.

    What was compiled runs uncompiled meanwhile, or torch would compile this too.
    """

    supports_higher_order_operators = True  # flex attention is one

    def __init__(self) -> None:
        super().__init__()
        self._uncompiled: list[AbstractContextManager[Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it would import all of it

    def __enter__(self) -> Self:
        """Watch from now on."""
        self._uncompiled.append(uncompiled())
        self._uncompiled[-1].__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Watch no more."""
        super().__exit__(*raised)
        self._uncompiled.pop().__exit__(*raised)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand an operation on, as torch calls it; a mode for functions sees no work of the watcher's own in it."""
        with torch._C.DisableTorchFunction():  # TorchScript calls operations without leaving such modes
            return self.run_operation(func, args, kwargs or {})

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; what it returns is what the subject gets."""
        return func(*args, **kwargs)


def is_scripted(module: nn.Module) -> bool:
    """Whether a part is compiled by TorchScript, whose copies have none of its methods in Python."""
    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def let_scripted_take_hooks() -> None:
    """Parts that TorchScript compiled take hooks as others do, which it refuses by name. Public: none."""
    for name in _METHODS_OF_HOOKS:
        setattr(RecursiveScriptModule, name, getattr(nn.Module, name))


def uncompiled() -> AbstractContextManager[Any]:
    """A region in which what was compiled runs uncompiled, so that each operation can be seen."""
    return torch.compiler.set_stance("force_eager") if may_compile() else nullcontext()


def under_modes_of_here(work: Callable[[], object]) -> Callable[[], object]:
    """Work for another thread, seen there by what sees the operations of this one: `_push_mode`. Public: none."""
    modes = _get_current_dispatch_mode_stack()

    def seen() -> object:
        for mode in modes:
            _push_mode(mode)
        try:
            return work()
        finally:
            for _ in modes:
                _pop_mode()

    return seen


def untraced() -> AbstractContextManager[None]:
    """A region whose operations no dispatch mode sees: `torch._C._DisableTorchDispatch`. Public: none."""
    return cast("AbstractContextManager[None]", torch._C._DisableTorchDispatch())


def below_autograd() -> AbstractContextManager[None]:
    """A region in which no operation is broken up as autograd does: `_AutoDispatchBelowAutograd`. Public: none."""
    return cast("AbstractContextManager[None]", torch._C._AutoDispatchBelowAutograd())


@contextmanager
def recomputing_where(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """A region in which activation checkpointing keeps what it would compute again, unless this says so at its call.

    Replaces `CheckpointFunction` and `_checkpoint_without_reentrant_generator`. Public: none.
    """
    home: Any = torch.utils.checkpoint
    reentrant, without_reentrant = home.CheckpointFunction, home._checkpoint_without_reentrant_generator

    class Kept:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return reentrant.apply(function, preserve, *args) if is_wanted() else function(*args)

    def kept(*args: Any, **kwargs: Any) -> Iterator[None]:
        if is_wanted():
            yield from without_reentrant(*args, **kwargs)
        else:
            yield

    home.CheckpointFunction, home._checkpoint_without_reentrant_generator = Kept, kept
    try:
        yield
    finally:
        home.CheckpointFunction, home._checkpoint_without_reentrant_generator = reentrant, without_reentrant


def is_traced() -> bool:
    """Whether a mode sees every operation: the lengths of torch's two stacks of modes. Public: none."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0


def storage_key(storage: torch.UntypedStorage) -> int:
    """Tells one storage from another while both live: the address `_cdata`. Public: `data_ptr`, 0 of an empty one."""
    return int(storage._cdata)


def part_at(root: nn.Module, path: str) -> nn.Module:
    """The module at a path of `named_modules`; raises AttributeError where there is none.

    Public: `get_submodule`, which takes a method for it where both have one name (a ParameterList `parameters`).
    """
    part: Any = root
    for name in filter(None, path.split(".")):
        if name not in getattr(part, MODULES):
            raise AttributeError(f"{type(part).__name__} holds no module {name!r}")
        part = getattr(part, MODULES)[name]
    return cast("nn.Module", part)


def parameter_at(root: nn.Module, name: str) -> nn.Parameter:
    """The parameter of that name of `named_parameters`, as `part_at`. Public: `get_parameter`."""
    path, _, last = name.rpartition(".")
    return cast("nn.Parameter", getattr(part_at(root, path), PARAMETERS)[last])


def memory_of(tensor: Tensor) -> int:
    """Tells one piece of memory from another: of the storage, or of the tensor itself where it has none."""
    return storage_key(tensor.untyped_storage()) if tensor.layout == torch.strided else id(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether `torch.vmap` or another transform of torch.func wraps it: `torch._C._functorch`. Public: none."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def version_of(tensor: Tensor) -> int:
    """How often its memory was written into, by `_version`; 0 where that is not counted. Public: none."""
    return 0 if tensor.is_inference() else int(tensor._version)


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows it as a view, by `_is_view`. Public: none (`_base` is private too)."""
    return bool(tensor._is_view())


def hooks_on(tensor: Tensor) -> list[Callable[[Tensor], Tensor | None]]:
    """The hooks put on a tensor by `register_hook`: its `_backward_hooks`. Public: none."""
    return list((tensor._backward_hooks or {}).values())


def running_node() -> Any:
    """The node whose backward is running, or None: `torch._C._current_autograd_node`. Public: none."""
    return torch._C._current_autograd_node()


def backward_under_modes(output: Tensor, cotangent: Tensor) -> None:
    """Backward along a cotangent whose Python code runs under the modes of torch's functions: `_engine_run_backward`.

    Public: none; `backward` is such a function itself, and turns them off.
    """
    torch.autograd.graph._engine_run_backward(
        (output,), (cotangent,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def number_of(node: Any) -> int:
    """The running number that a node was given when it was made: `_sequence_nr`. Public: none."""
    return int(node._sequence_nr())


def next_number() -> int:
    """The number that the next node of this thread is given: `torch._C._autograd._get_sequence_nr`. Public: none."""
    return int(torch._C._autograd._get_sequence_nr())


def function_of(node: Any) -> type | None:
    """The autograd function in Python that made a node, by `_forward_cls`; None of torch's own. Public: none."""
    return cast("type | None", getattr(node, "_forward_cls", None))


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape of what an operation gave, by its node's `_input_metadata`; None where that is none. Public: none."""
    known = getattr(node, "_input_metadata", None)
    return tuple(known[0].shape) if known and not known[0].is_nested_tensor else None


def softmax_of(node: Any) -> tuple[tuple[int, ...], int]:
    """Shape and dim of the softmax that made a node: `_input_metadata`, `_saved_dim`. Public: none.

    Not by what it saved, which may have been overwritten and would raise.
    """
    return tuple(node._input_metadata[0].shape), int(node._saved_dim)


def function_running() -> type | None:
    """The autograd function in Python whose forward is running, by the frame of `Function.apply`. Public: none."""
    frame: FrameType | None = frame_above(1)
    while frame is not None:
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename == _FUNCTIONS:
            return frame.f_locals.get("cls")
        frame = frame.f_back
    return None


@contextmanager
def functions_applied_by(apply: Callable[[type, Callable[[], Any], tuple[Any, ...]], Any]) -> Iterator[None]:
    """A region in which `apply` applies every autograd function in Python: given it, the plain call, its arguments.

    Each one's `super().apply` comes through `_SingleLevelFunction`. Public: none.
    """

    def through(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(cls, lambda: super(_SingleLevelFunction, cls).apply(*args, **kwargs), args)

    setattr(_SingleLevelFunction, "apply", classmethod(through))  # noqa: B010 (torch declares it elsewhere)
    try:
        yield
    finally:
        del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def schema_of(func: Any) -> Any:
    """An operation's schema, by `_schema`; None of one of a higher order. Public: none."""
    return getattr(func, "_schema", None)


def overload_of(func: Any) -> str:
    """The name of an operation's overload, by `_overloadname`; "" of one that has none. Public: none."""
    return str(getattr(func, "_overloadname", ""))


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """Floating-point operations of a product or an attention, by torch's formula for its `_overloadpacket`, or None.

    Public: `torch.utils.flop_counter.FlopCounterMode`, a mode of its own.
    """
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    return None if formula is None else int(formula(*args, **kwargs, out_val=result))


def registered(module: nn.Module, registries: Sequence[str] = REGISTRIES) -> dict[str, Any]:
    """Parameters, buffers and submodules as registered, past what `named_parameters` of the subject's may answer."""
    return {name: each for registry in registries for name, each in getattr(module, registry).items()}


def registries(module: nn.Module) -> frozenset[str]:
    """The attributes in which a module keeps what is registered with it, and its hooks. Public: none."""
    return frozenset({*REGISTRIES, *(name for name in vars(module) if "_hooks" in name)})


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The dictionaries in which a module keeps its hooks, themselves. Public: none."""
    return [held for name, held in vars(module).items() if "_hooks" in name and isinstance(held, dict)]


def convert_tensors(module: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """Convert each tensor of a module where it stands, by `_apply`. Public: `Module.to`, which converts in one way."""
    return module._apply(convert)


_NAMESPACES = ("aten", "prim", "prims", "higher_order")
_FUNCTIONS = inspect.getfile(torch.autograd.Function)


def graph_compiler(name: str) -> Callable[..., Callable[..., Any]]:
    """What a backend of `torch.compile` makes of a graph and its inputs, by `torch._dynamo.lookup_backend`.

    Public: the name itself, which lets nobody see the graph.
    """
    from torch._dynamo import lookup_backend  # a second of imports, for those that ask

    return cast("Callable[..., Callable[..., Any]]", lookup_backend(name))


def is_registered_by_a_user(target: Any) -> bool:
    """Whether what a node of a graph calls is an operator that is not torch's, or an autograd function in Python.

    By `namespace` of torch's own operators, and the name that the compiler gives such functions. Public: none.
    """
    name = str(getattr(target, "__name__", ""))
    return name.startswith("autograd_function") or getattr(target, "namespace", "aten") not in _NAMESPACES


def claims_flash_attention(module: nn.Module) -> bool:
    """Whether a model of transformers says that flash attention serves it, which keeps sequences in one row apart."""
    return bool(getattr(module, "_supports_flash_attn", False))


def maker_of_models(kind: type) -> Callable[..., nn.Module] | None:
    """What makes a model of a class of transformers from a configuration and implementations; None of other classes.

    public: the Auto classes, which make only types that are registered there.
    """
    made: Callable[..., nn.Module] | None = getattr(kind, "_from_config", None)
    return made
