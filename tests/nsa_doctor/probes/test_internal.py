"""What is taken of torch does what it is taken for; the name of a test that fails says what the doctor loses."""

import functools
import inspect
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from nsa_doctor.probes import internal
from nsa_doctor.probes.cost.bounds import are_in_bounded_containers
from nsa_doctor.probes.hooks.saved import functions_seen
from tests.nsa_doctor.probes.names_of_modules import parts_are_found_by_their_paths, scripted_parts_take_hooks
from tests.nsa_doctor.probes.names_of_the_compiler import (
    graphs_are_compiled_by_name,
    nothing_is_compiled,
    operators_of_users_are_known,
)


class Twice(torch.autograd.Function):
    """Multiplies by two, and says which autograd function is running."""

    running: type | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Twice.running = internal.function_running()
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


class Names(internal.DispatchWatcher):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(func)
        return super().run_operation(func, args, kwargs)


def leaf(*size: int) -> Tensor:
    return torch.ones(*size or (2,), requires_grad=True)


def dispatched(call: Callable[[], Any]) -> list[str]:
    with Names() as names:
        call()
    return [str(func) for func in names.seen]


def operations_are_seen() -> None:
    assert dispatched(lambda: torch.ones(2).exp()) == ["aten.ones.default", "aten.exp.default"]
    x = leaf()
    assert "aten.mul.Tensor" in dispatched(x.exp().sum().backward)


def operations_of_a_higher_order_are_seen() -> None:
    q = torch.randn(1, 1, 4, 16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it would rather be compiled
        first = dispatched(lambda: flex_attention(q, q, q))
    assert any("attention" in name for name in first)


def compiled_operations_are_seen() -> None:
    compiled = torch.compile(lambda x: x.sin().cos(), backend="eager")
    assert dispatched(lambda: compiled(torch.ones(2)))[1:] == ["aten.sin.default", "aten.cos.default"]


def checkpointing_can_keep_everything() -> None:
    for is_reentrant in (True, False):
        for num_calls, wanted in ((2, True), (1, False)):
            calls: list[Tensor] = []
            with internal.recomputing_where(lambda wanted=wanted: wanted):
                run = lambda x, calls=calls: calls.append(x) or x.exp()  # noqa: E731
                checkpoint(run, leaf(), use_reentrant=is_reentrant).sum().backward()
            assert len(calls) == num_calls


def untraced_operations_are_not_seen() -> None:
    with Names() as names:
        x = torch.ones(2)
        with internal.untraced():
            x.exp()
    assert len(names.seen) == 1


def operations_of_another_thread_are_seen() -> None:
    with Names() as names, ThreadPoolExecutor() as pool:
        for work in (lambda: torch.ones(2), internal.under_modes_of_here(lambda: torch.ones(2))):
            pool.submit(work).result()
    assert len(names.seen) == 1


def composite_operations_stay_whole() -> None:
    def seen() -> list[str]:
        return dispatched(lambda: nn.functional.linear(torch.ones(1, 2, 3), torch.ones(4, 3), torch.ones(4)))[3:]

    with torch.inference_mode():
        whole = seen()
    with torch.no_grad(), internal.below_autograd():
        below = seen()
    assert below == whole


def modes_are_noticed() -> None:
    class Passing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    assert not internal.is_traced()
    with Names():
        assert internal.is_traced()
    with Passing():
        assert internal.is_traced()


def storages_differ() -> None:
    x, other, empty, also_empty = torch.ones(4), torch.ones(4), torch.empty(0), torch.empty(0)
    assert internal.memory_of(x) == internal.memory_of(x[1:]) == internal.storage_key(x.untyped_storage())
    assert internal.memory_of(x) != internal.memory_of(other)
    assert internal.memory_of(empty) != internal.memory_of(also_empty)
    sparse = torch.eye(2).to_sparse()
    assert internal.memory_of(sparse) == id(sparse)


def a_storage_is_seen_to_end() -> None:
    x = torch.ones(4)
    reference = internal.StorageWeakRef(x.untyped_storage())
    assert not reference.expired()
    del x
    assert reference.expired()


def transforms_are_known() -> None:
    seen: list[bool] = []
    torch.vmap(lambda row: seen.append(internal.is_transformed(row)) or row)(torch.ones(2, 2))
    assert seen == [True]
    assert not internal.is_transformed(torch.ones(2))


def writes_are_counted() -> None:
    x = torch.ones(4)
    before, view = internal.version_of(x), x[1:]
    view.add_(1)
    assert internal.version_of(x) == internal.version_of(view) == before + 1
    with torch.inference_mode():
        assert internal.version_of(torch.ones(1)) == 0


def views_are_known() -> None:
    x = torch.ones(4)
    assert internal.is_view(x[1:])
    assert not internal.is_view(x)


def hooks_are_found() -> None:
    x = leaf()
    assert internal.hooks_on(x) == []
    hook = lambda gradient: gradient  # noqa: E731
    x.register_hook(hook)
    assert internal.hooks_on(x) == [hook]


def the_node_that_runs_is_known() -> None:
    x, running = leaf(), []
    y = x.exp()
    y.register_hook(lambda gradient: running.append(internal.running_node()))
    (y * 1).sum().backward()
    assert internal.running_node() is None
    assert [node.name() for node in running] == ["ExpBackward0"]


def backward_keeps_modes_on() -> None:
    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, seen = leaf(), list[Any]()
    with Seeing():
        x.register_hook(lambda gradient: torch.full((2,), 3.0) + gradient * 0)
        internal.backward_under_modes(2 * x, torch.ones_like(x))
    assert torch.full in seen
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def nodes_are_numbered() -> None:
    x, begun = leaf(), internal.next_number()
    first, second = x.exp(), x.sin()
    numbers = [internal.number_of(first.grad_fn), internal.number_of(second.grad_fn), internal.next_number()]
    assert numbers == [begun, begun + 1, begun + 2]


def hand_written_nodes_are_known() -> None:
    x = leaf()
    assert internal.function_of(Twice.apply(x).grad_fn) is Twice
    assert internal.function_of(x.exp().grad_fn) is None
    assert internal.function_of(None) is None


def shapes_of_nodes_are_known() -> None:
    assert internal.shape_of(leaf(2, 3).exp().grad_fn) == (2, 3)
    assert internal.shape_of(leaf(2, 3).exp().sum(1).grad_fn.next_functions[0][0]) == (2, 3)
    assert internal.shape_of(object()) is None


def a_softmax_is_known_by_its_shape() -> None:
    assert internal.softmax_of(leaf(2, 3, 1).softmax(-2).grad_fn)[0] == (2, 3, 1)
    assert internal.softmax_of(leaf(2, 3, 1).softmax(1).grad_fn)[1] == 1


def a_forward_that_runs_is_known() -> None:
    Twice.apply(leaf())
    assert Twice.running is Twice
    assert internal.function_running() is None


def applied_functions_are_seen() -> None:
    seen: list[Any] = []
    x = leaf()
    with functions_seen(seen.append):
        Twice.apply(x).sum().backward()
    Twice.apply(x)
    assert [internal.function_of(ctx) for ctx in seen] == [Twice]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def schemas_are_read() -> None:
    add_ = torch.ops.aten.add_.Tensor
    assert internal.schema_of(add_).is_mutable
    assert internal.schema_of(add_).name == "aten::add_"
    assert internal.schema_of(torch.ops.higher_order.flex_attention) is None


def overloads_are_read() -> None:
    assert internal.overload_of(torch.ops.aten.add.out) == "out"
    assert internal.overload_of(torch.ops.higher_order.flex_attention) == ""


def products_are_counted() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    assert internal.flops_of(torch.ops.aten.mm.default, (a, b), {}, a @ b) == 2 * 2 * 3 * 4
    assert internal.flops_of(torch.ops.aten.add.Tensor, (a, a), {}, a + a) is None
    assert internal.flops_of(torch.ops.higher_order.flex_attention, (), {}, a) is None


def parts_of_a_module_are_found() -> None:
    module = nn.BatchNorm1d(2)
    module.part = nn.Identity()
    assert list(internal.registered(module)) == ["weight", "bias", *dict(module.named_buffers()), "part"]
    assert list(internal.registered(module, [internal.MODULES])) == ["part"]


def machinery_of_a_module_is_known() -> None:
    module = nn.Linear(2, 2)
    module.own = 1  # type: ignore[assignment]
    left = vars(module).keys() - internal.registries(module)
    assert "own" in left
    handle = module.register_forward_hook(lambda *_: None)
    kept = [name for name, value in vars(module).items() if isinstance(value, dict) and handle.id in value]
    assert kept
    assert set(kept) <= internal.registries(module)


def hooks_of_a_module_are_found() -> None:
    module = nn.Linear(2, 2)
    handle = module.register_forward_hook(lambda *_: None)
    assert any(handle.id in held for held in internal.hooks_of(module))


def a_module_is_converted() -> None:
    module = nn.BatchNorm1d(2)
    internal.convert_tensors(module, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float64, torch.int64}


def what_depends_on_the_mode_is_known() -> None:
    norms = (nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2), nn.LazyBatchNorm3d())
    assert all(isinstance(norm, internal.NORMS_BY_BATCH) for norm in norms)
    assert not isinstance(nn.LayerNorm(2), internal.NORMS_BY_BATCH)


def dropouts_are_known() -> None:
    assert all(isinstance(drop, internal.DROPOUTS) for drop in (nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout()))


def containers_are_walked() -> None:
    nested = ({"a": [torch.ones(1), 2]}, torch.ones(2))
    assert [leaf for leaf in internal.tree_leaves(nested) if isinstance(leaf, int)] == [2]
    assert internal.tree_map(lambda leaf: 0, nested) == ({"a": [0, 0]}, 0)


def wrappers_are_known() -> None:
    assert not internal.is_traceable_wrapper_subclass(torch.ones(1))
    assert internal.is_traceable_wrapper_subclass(torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged))


def caches_state_their_bound() -> None:
    kept = torch.ones(1)
    few, all_of_them = functools.lru_cache(maxsize=2)(lambda tensor: tensor), functools.cache(lambda tensor: tensor)
    few(kept)
    assert are_in_bounded_containers(lambda tensor: tensor is kept)
    other = torch.ones(1)
    all_of_them(other)
    assert not are_in_bounded_containers(lambda tensor: tensor is other)


def models_claim_flash_attention() -> None:
    model = nn.Linear(2, 2)
    assert not internal.claims_flash_attention(model)
    vars(model)["_supports_flash_attn"] = True
    assert internal.claims_flash_attention(model)


def classes_of_models_make_them() -> None:
    made = type("Model", (nn.Linear,), {"_from_config": classmethod(lambda cls, config: cls(config, config))})
    make = internal.maker_of_models(made)
    assert internal.maker_of_models(nn.Linear) is None
    assert make is not None
    assert isinstance(make(2), made)


LOST: dict[str, tuple[Callable[[], None], str]] = {
    "DispatchWatcher": (operations_are_seen, "no operation is seen: no origin, no count, no check on work"),
    "DispatchWatcher, higher order": (operations_of_a_higher_order_are_seen, "flex attention raises under FWD206"),
    "DispatchWatcher, compiled": (compiled_operations_are_seen, "compiled subjects have no lines"),
    "uncompiled": (nothing_is_compiled, "what is compiled hides its operations and saved tensors (GRD401, GRD402)"),
    "untraced": (untraced_operations_are_not_seen, "a recording records its own copies (first divergences)"),
    "under_modes_of_here": (operations_of_another_thread_are_seen, "FWD212 cannot locate what another thread changes"),
    "recomputing_where": (checkpointing_can_keep_everything, "GRD111 cannot tell what checkpointing changes"),
    "below_autograd": (composite_operations_stay_whole, "FWD212 cannot locate what inference mode changes"),
    "is_traced": (modes_are_noticed, "a probe takes what observing computes for the subject's (NAN101, PRF101)"),
    "memory_of": (storages_differ, "writes, allocations and origins go to the wrong tensor (NAN101, PRF301)"),
    "storage_key": (storages_differ, "state is put back into other memory (every check that calls twice)"),
    "StorageWeakRef": (a_storage_is_seen_to_end, "memory given back is taken for what it was (NAN101, PRF101)"),
    "is_transformed": (transforms_are_known, "modules that use torch.vmap raise while rounding is measured (FWD304)"),
    "version_of": (writes_are_counted, "writes in place are not seen (GRD401, GRD402, fuzz)"),
    "is_view": (views_are_known, "a view counts as a tensor of the graph (GRD101)"),
    "hooks_on": (hooks_are_found, "hooks that change a gradient are not blamed (GRD101)"),
    "running_node": (the_node_that_runs_is_known, "what goes wrong in backward has no place (NAN102, GRD401)"),
    "backward_under_modes": (backward_keeps_modes_on, "a hand-written backward is not followed on a GPU (FWD225)"),
    "number_of": (nodes_are_numbered, "a node of backward is not traced to its forward line (NAN102, PRF301)"),
    "next_number": (nodes_are_numbered, "a graph of an earlier call is not distinguished from a new one (GRD403)"),
    "function_of": (hand_written_nodes_are_known, "backward by hand is not blamed (GRD101, GRD107)"),
    "shape_of": (shapes_of_nodes_are_known, "what a value was made of is not read in its place (GRD213)"),
    "softmax_of": (a_softmax_is_known_by_its_shape, "a softmax over one element is not named (GRD202)"),
    "graph_compiler": (graphs_are_compiled_by_name, "no module is compared with what torch.compile makes (FWD228)"),
    "is_registered_by_a_user": (operators_of_users_are_known, "a wrong operator is not blamed once compiled (FWD228)"),
    "function_running": (a_forward_that_runs_is_known, "what a Function computes counts as detached (GRD101)"),
    "functions_applied_by": (applied_functions_are_seen, "tensors kept in ctx are not watched (GRD401, GRD402)"),
    "schema_of": (schemas_are_read, "an operation has no name, and its writes are not seen (FWD208, NAN101)"),
    "overload_of": (overloads_are_read, "`out=` counts as reading what it overwrites (NAN101)"),
    "flops_of": (products_are_counted, "products cost nothing (PRF202, and how far is examined)"),
    "part_at": (parts_are_found_by_their_paths, "checks crash where a part bears a method's name (FWD269)"),
    "parameter_at": (parts_are_found_by_their_paths, "checks crash where a part bears a method's name (GRD232)"),
    "is_scripted": (scripted_parts_take_hooks, "a copy is held to what TorchScript left out of it (FWD210, FWD220)"),
    "let_scripted_take_hooks": (scripted_parts_take_hooks, "ten checks crash where TorchScript compiled a part"),
    "registered": (parts_of_a_module_are_found, "tensors beside the parameter list are missed (GRD203)"),
    "registries": (machinery_of_a_module_is_known, "torch's own attributes count as the subject's (GRD203, PRF301)"),
    "hooks_of": (hooks_of_a_module_are_found, "a watch is lost where running state is put back (FWD207, GRD104)"),
    "convert_tensors": (a_module_is_converted, "subjects cannot be examined in another dtype (FWD304, NAN105)"),
    "NORMS_BY_BATCH": (what_depends_on_the_mode_is_known, "false alarm of FWD207 for batch norm"),
    "DROPOUTS": (dropouts_are_known, "false alarm of FWD207 for dropout"),
    "tree_leaves": (containers_are_walked, "tensors in an answer are not found (GRD207, GRD403)"),
    "tree_map": (containers_are_walked, "float64 references stay in the subject's dtype (FWD301, FWD304)"),
    "is_traceable_wrapper_subclass": (wrappers_are_known, "state of wrapped tensors is not put back (FWD210)"),
    "claims_flash_attention": (models_claim_flash_attention, "packed rows of a model of transformers are not examined"),
    "maker_of_models": (classes_of_models_make_them, "models that no Auto class knows are no subjects"),
    "lru_cache": (caches_state_their_bound, "false alarm of PRF301 for a cache with a bound"),
}


@pytest.mark.parametrize("name", LOST, ids=[f"{name}: else {loss}" for name, (_, loss) in LOST.items()])
def test_a_name_serves(name: str) -> None:
    LOST[name][0]()


def test_every_name_has_its_test() -> None:
    own = {name for name, value in vars(internal).items() if getattr(value, "__module__", "") == internal.__name__}
    taken = {"StorageWeakRef", "tree_leaves", "tree_map", "is_traceable_wrapper_subclass", "NORMS_BY_BATCH", "DROPOUTS"}
    assert {name for name in own if not name.startswith("_")} | taken <= LOST.keys()
    assert all(inspect.getdoc(getattr(internal, name)) for name in own)
