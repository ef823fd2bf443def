"""A tensor is read as `torch.load(weights_only=True)` loads it, or refused: over archives of every kind of argument."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nsa_doctor.artifacts.checkpoint import symbols
from nsa_doctor.artifacts.checkpoint.contents import Tensor as Read
from nsa_doctor.artifacts.checkpoint.fault import FaultError
from nsa_doctor.artifacts.checkpoint.limits import Deadline
from nsa_doctor.artifacts.checkpoint.open_checkpoint import open_checkpoint
from nsa_doctor.artifacts.checkpoint.scan import scan
from nsa_doctor.artifacts.checkpoint.values import read_values
from nsa_doctor.core.errors import Caught, attempt
from tests.hostile.case import Calls, Kept, archive, pickled

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
MOST = 2**16
STORED = np.arange(1, 17, dtype="<f4").tobytes()  # sixteen numbers of four bytes
UTILS = torch._utils


def by_name(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in what torch loaded."""
    if isinstance(node, Tensor):
        yield ".".join(path), node
    elif isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from by_name(value, (*path, str(key)))


def values_of(tensor: Tensor) -> np.ndarray | None:
    """As float64, of a complex number its size; None where torch itself has no values for it."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        return None
    plain = (tensor.dequantize() if tensor.is_quantized else tensor).detach().resolve_conj().resolve_neg()
    return (plain.to(torch.complex128).abs() if plain.is_complex() else plain).to(torch.float64).numpy()


def differences(path: Path) -> Iterator[str]:
    """Where what is read is not what torch loads; nothing where it is refused."""
    with ExitStack() as stack:
        try:
            contents = open_checkpoint(str(path), stack, Deadline(30))
        except FaultError:
            return
        read = {tensor.name: tensor for tensor in contents.tensors}
        whole = attempt(lambda: torch.load(path, map_location="cpu", weights_only=True))
        if isinstance(whole, Caught):
            if not scan(contents, Deadline(30)).unread:
                yield f"it is read, and torch refuses: {whole.sentence}"
            return
        for name, tensor in by_name(whole):
            yield from (f"{name}: {what}" for what in differing(read.get(name), tensor))


def differing(read: Read | None, tensor: Tensor) -> Iterator[str]:
    if read is None:
        yield "not found"
        return
    try:
        found = read_values(read, MOST)
    except FaultError:
        return
    expected = values_of(tensor)
    if expected is None or found.shape != expected.shape:
        yield f"{found.shape} and not {None if expected is None else expected.shape}"
    elif read.dtype != str(tensor.dtype).removeprefix("torch."):
        yield f"{read.dtype} and not {tensor.dtype}"
    elif not np.allclose(found, expected, rtol=1e-6 if tensor.is_quantized else 1e-15, atol=0, equal_nan=True):
        yield f"{found} and not {expected}"


class Built(Calls):
    """Pickles as a call whose result then is given a state, or items."""

    def __init__(self, call: Calls, state: Any = None, items: Any = None) -> None:
        super().__init__(call.function, *call.arguments)
        self.state, self.items = state, items

    def __reduce__(self) -> Any:
        return self.function, self.arguments, self.state, None, self.items


kinds = st.sampled_from(
    [
        *(torch.FloatStorage, torch.FloatStorage, torch.FloatStorage, torch.IntStorage, torch.HalfStorage),
        *(torch.ByteStorage, torch.BFloat16Storage, torch.DoubleStorage, torch.ComplexFloatStorage, torch.BoolStorage),
        *(torch.QInt8Storage, torch.QInt32Storage, torch.UntypedStorage),
    ]
)
dtypes = st.sampled_from(
    [
        *(torch.float32, torch.float16, torch.int32, torch.uint16, torch.complex64, torch.float8_e5m2, torch.bits8),
        *(torch.qint8, torch.uint4, torch.float64),
    ]
)


def kept(kind: Any) -> Kept:
    dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
    return Kept(len(STORED) // dtype.itemsize, kind=kind)


storages = kinds.map(kept)
sizes = st.one_of(
    st.sampled_from(
        [(4,), (2, 2), (2, 3), (), (0,), (3, 0), (1, 1, 1), (16,), (17,), (2**63, 0), (0, 2**62, 4), (-1,)]
    ),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
)
strides = st.lists(st.one_of(st.integers(0, 4), st.sampled_from([-1, 2**62, 2**63])), max_size=3).map(tuple)
truths = st.sampled_from([False, False, False, True, None, 1])
hooks = st.sampled_from([OrderedDict(), OrderedDict(), None, {}, 3])
bits = st.sampled_from([(), (), (), ({},), (None,), ({"neg": True},), ({"conj": True},), ({"neg": False},), (3,)])
offsets = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**62, 2**64, True]))
states = st.sampled_from(
    [{}, None, {"note": 3}, {"data": 3}, ({}, None), ({"a": 1}, {"b": 2}), 3, {"requires_grad": True}]
)


@st.composite
def views(draw: st.DrawFn) -> Calls:
    """Any call of the functions that make a tensor of a storage."""
    size = draw(sizes)
    dense = tuple(int(np.prod([max(side, 1) for side in size[place + 1 :]])) for place in range(len(size)))
    place = (draw(storages), draw(offsets), draw(st.sampled_from([size, size, list(size)])))
    place = (*place, draw(st.one_of(st.just(dense), st.just(dense), strides)))
    kind = draw(st.sampled_from(["", "_v2", "_v2", "_v3", "q"]))
    if kind == "":
        return Calls(UTILS._rebuild_tensor, *place)
    asked = (draw(truths), draw(hooks))
    if kind == "_v2":
        return Calls(UTILS._rebuild_tensor_v2, *place, *asked, *draw(bits))
    if kind == "_v3":
        return Calls(UTILS._rebuild_tensor_v3, *place, *asked, draw(dtypes), *draw(bits))
    return Calls(UTILS._rebuild_qtensor, *place, draw(schemes(size)), *asked)


@st.composite
def schemes(draw: st.DrawFn, size: tuple[int, ...]) -> Any:
    if draw(st.booleans()):
        return torch.per_tensor_affine, draw(st.sampled_from([0.5, 1, float("nan"), None])), draw(st.integers(-3, 3))
    count = draw(st.sampled_from([*size, 2]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    along = Calls(UTILS._rebuild_tensor_v2, Kept(4), 0, (min(count, 4),), (1,), False, OrderedDict())
    along = (
        Calls(UTILS._rebuild_device_tensor_from_cpu_tensor, along, dtype, "cpu", False)
        if draw(st.booleans())
        else along
    )
    scheme = draw(st.sampled_from([torch.per_channel_affine, torch.per_channel_affine_float_qparams]))
    return scheme, along, draw(st.sampled_from([along, [0, 1]])), draw(st.integers(-1, 2))


def wrapped(inner: st.SearchStrategy[Calls]) -> st.SearchStrategy[Calls]:
    """What else may be done to a tensor in a pickle."""
    made = (st.sampled_from([torch.Tensor, nn.Parameter, torch.FloatTensor]), inner, states)
    return st.one_of(
        st.builds(lambda data, *more: Calls(UTILS._rebuild_parameter, data, *more), inner, truths, hooks),
        st.builds(
            lambda data, *more: Calls(UTILS._rebuild_parameter_with_state, data, *more), inner, truths, hooks, states
        ),
        st.builds(
            lambda kind, call, state: Calls(
                torch._tensor._rebuild_from_type_v2, call.function, kind, call.arguments, state
            ),
            *made,
        ),
        st.builds(
            lambda data, dtype: Calls(UTILS._rebuild_device_tensor_from_cpu_tensor, data, dtype, "cpu", False),
            inner,
            dtypes,
        ),
        st.builds(lambda call, state: Built(call, state=state), inner, st.one_of(states, changes(inner))),
        st.builds(lambda call: Built(call, items=iter([(0, 1.0)])), inner),
        st.builds(lambda call: Calls(nn.Parameter, call), inner),
        st.builds(
            lambda call, other: Calls(UTILS._rebuild_parameter_with_state, call, False, OrderedDict(), {"data": other}),
            inner,
            inner,
        ),
    )


def changes(inner: st.SearchStrategy[Calls]) -> st.SearchStrategy[Any]:
    """States that put other values into a tensor."""
    return st.builds(lambda storage: (storage, 0, (4,), (1,)), storages) | inner.map(
        lambda data: (data, False, OrderedDict(), {})
    )


rebuilds = st.recursive(views(), wrapped, max_leaves=3)
things = st.recursive(
    st.one_of(rebuilds, storages, st.integers(), st.just("text")),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=4,
)


def written(folder: Path, thing: Any, is_swapped: bool = False) -> Path:
    entries = {"archive/data/0": STORED, "archive/byteorder": b"big" if is_swapped else b"little"}
    return archive(folder / "x.pt", pickled(thing), entries)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(thing=things, is_swapped=st.sampled_from([False, False, True]))
def test_any_description_is_read_as_torch_reads_it_or_refused(thing: Any, is_swapped: bool, tmp_path: Path) -> None:
    assert list(differences(written(tmp_path, {"w": thing}, is_swapped))) == []


def test_an_attribute_that_a_tensor_has_by_itself_is_on_the_list() -> None:
    kinds = ("getset_descriptor", "property", "member_descriptor")
    assert {name for name in dir(Tensor) if type(getattr(Tensor, name)).__name__ in kinds} <= symbols.OWN_ATTRIBUTES


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """What models hold: any dtype, any view, a parameter of its own or with attributes, quantised."""
    dtype = draw(st.sampled_from(PLAIN))
    base = torch.arange(24.0).sub(7).mul(0.37).to(dtype).view(2, 3, 4)
    view = base.permute(draw(st.permutations(range(3))))[draw(st.integers(0, 1)) :, :: draw(st.integers(1, 2))]
    match draw(st.sampled_from(["view", "view", "copy", "parameter", "attribute", "expanded", "number", "quantised"])):
        case "copy":
            return view.clone()
        case "parameter":
            return nn.Parameter(view, requires_grad=view.is_floating_point())
        case "attribute":
            made = nn.Parameter(view, requires_grad=False)
            made.tensor_model_parallel = True
            return made
        case "expanded":
            return view[..., :1].expand(-1, -1, 5)
        case "number":
            return view[0, 0, 0]
        case "quantised":
            return torch.quantize_per_tensor(view.float(), 0.1, 3, torch.qint8)
    return view


PLAIN = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16),
    *(torch.int8, torch.bool, torch.complex64),
]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    saved=st.dictionaries(st.sampled_from(["a", "b.weight", "c"]), tensors(), min_size=1),
    is_nested=st.booleans(),
    is_tied=st.booleans(),
)
def test_whatever_a_model_holds_is_read(
    saved: dict[str, Tensor], is_nested: bool, is_tied: bool, tmp_path: Path
) -> None:
    more = {"tied": next(iter(saved.values()))} if is_tied else {}
    thing = {**saved, **more}
    torch.save({"model": OrderedDict(thing), "step": 3} if is_nested else thing, tmp_path / "x.pt")
    assert list(differences(tmp_path / "x.pt")) == []
    with ExitStack() as stack:
        contents = open_checkpoint(str(tmp_path / "x.pt"), stack, Deadline(30))
        assert [read_values(tensor, MOST).shape for tensor in contents.tensors] == [
            tuple(tensor.shape) for tensor in thing.values()
        ]
