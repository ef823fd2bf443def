"""Finds gates in one forward pass: a small linear map, softmax or sigmoid, and a product with other activations.

They are found by what is computed and not by name, so in any module. What follows only the largest of them, or ranks
them, is a router: its unused outputs are as they should be.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import parameter_at, part_at, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.subject.contract import Subject, WrongOutputError

_MOST_WEIGHTS, _MOST_SWITCHES = 16, 64  # of a softmax, of sigmoids side by side
_LENGTH, _ROWS = 160, 2
_NUM_MIXED = 2  # one weight alone scales what it gates, and may well start at a constant; so may each feature's own
_PRODUCTS = frozenset(
    {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "addmm", "bmm", "baddbmm", "einsum", "conv1d"}
)
_MULTIPLY = frozenset({"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply", "addcmul", "lerp"})
_SAME = frozenset(
    (
        *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "permute", "movedim"),
        *("swapaxes", "contiguous", "clone"),
        *("expand", "expand_as", "repeat_interleave", "to", "float", "double", "half", "bfloat16", "type_as"),
        *("type", "chunk", "split", "unbind"),
        *("__getitem__", "t", "__get__", "view_as", "tensor_split", "narrow", "select", "repeat", "rearrange"),
        *("mean", "cat", "stack", "detach", "round"),
    )
)
_SHIFTS = frozenset(
    {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "__rsub__", "sub_", "__isub__"}
)
_SCALES = _SHIFTS | frozenset(
    (
        *("div", "__truediv__", "true_divide", "div_", "__itruediv__", "mul", "__mul__", "__rmul__", "mul_"),
        *("__imul__", "neg", "tanh"),
        *("clamp", "clamp_", "clip", "clip_", "masked_fill", "masked_fill_", "where"),
    )
)
_RANKS = frozenset(
    (
        *("topk", "max", "argmax", "sort", "argsort", "multinomial", "amax", "gt", "ge", "__gt__", "__ge__"),
        *("kthvalue", "one_hot"),
    )
)
_USES = _MULTIPLY | _PRODUCTS


@dataclass(eq=False)
class ObservedGate:
    """What a gate computed: `weights` [B, S, ..., K] over K parts as used, `parameters` the names it is made of.

    `where` is the module that holds them; `use` where the weights meet what they weigh. `scales` are those of the
    parameters that only multiply its logits; `is_shifted` says that something else than a parameter is added to them.
    An elementwise gate weighs feature by feature what is as wide as itself, and mixes no branches. `computed` are the
    tensors of the graph that `lay_out` makes the weights of, one for each call, and `product` what it weighs, weighed.
    """

    where: Place
    weights: Tensor
    is_softmax: bool
    parameters: tuple[str, ...] = ()
    use: Place = field(default_factory=Place)
    is_used: bool = False
    is_router: bool = False
    is_elementwise: bool = False
    scales: frozenset[str] = frozenset()
    is_shifted: bool = False
    computed: tuple[Tensor, ...] = ()
    product: Tensor | None = None
    lay_out: Callable[[Tensor], Tensor] = lambda weights: weights

    @property
    def values(self) -> Tensor:
        """The weights as [N, K] in float64, one row per token."""
        return self.weights.detach().double().flatten(0, -2)

    @property
    def slopes(self) -> Tensor:
        """How far a weight moves when its logit does, at most: [N, K] for switches, [N, 1] for a softmax."""
        slopes = self.values * (1 - self.values)
        return slopes.amax(-1, keepdim=True) if self.is_softmax else slopes

    @property
    def saturated_share(self) -> float:
        """The share of them that are flat: below √eps of float32 a step that turns what is gated over moves nothing."""
        return float((self.slopes < torch.finfo(torch.float32).eps ** 0.5).double().mean())

    @property
    def spread(self) -> float:
        """How far a weight goes from one token to another, at most."""
        return float((self.values.amax(0) - self.values.amin(0)).amax())

    @property
    def is_mixing(self) -> bool:
        """Whether it weighs branches against each other: not a number alone, nor each feature by itself."""
        return self.values.shape[-1] >= _NUM_MIXED and not self.is_elementwise

    @property
    def is_blind(self) -> bool:
        """Whether no weight moves from token to token by more than rounding."""
        return self.spread <= 8 * torch.finfo(self.weights.dtype).eps


@dataclass(frozen=True)
class _Logits:
    """What is on its way to be the weights of a gate: what it is made of, what only scales it, what was added to it."""

    parameters: tuple[str, ...]
    scales: frozenset[str] = frozenset()
    shifts: tuple[Any, ...] = ()


def gates(sp: BuiltModule, x: Tensor) -> tuple[list[ObservedGate], Tensor]:
    """Every gate of one forward pass with gradients, and the output; those of the `gate` seam where none is seen."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    finder = _Finder(sp.module, places, rows=x.shape[0], length=x.shape[1])
    with torch.enable_grad():
        with uncompiled(), finder, places.watching():
            output = sp.call(x.clone())
        found = joined_over_tokens([gate for gate in finder.gates if gate.is_used])
        if not found and sp.subject.gate is not None:
            found = [_offered(sp, x)]
    return found, output


def gates_of(subject: Subject, length: int = _LENGTH) -> tuple[BuiltModule, Tensor, list[ObservedGate]]:
    """The gates of the subject as it is built, on ordinary input."""
    sp = built(subject, is_randomised=False)
    x = sp.input(min(length, subject.max_length), _ROWS)
    return sp, x, gates(sp, x)[0]


def joined_over_tokens(found: Sequence[ObservedGate]) -> list[ObservedGate]:
    """The gates, those that were computed token by token as one: the same line, of the same parameters."""
    calls: dict[tuple[Place, tuple[str, ...]], list[ObservedGate]] = {}
    for gate in found:
        calls.setdefault((gate.where, gate.parameters), []).append(gate)
    joined = []
    for each in calls.values():
        is_by_token = len(each) > 1 and all(gate.weights.shape[1] == 1 for gate in each)
        if is_by_token and len({gate.weights.shape for gate in each}) == 1:
            each[0].weights = torch.cat([gate.weights for gate in each], dim=1)
            each[0].computed = tuple(tensor for gate in each for tensor in gate.computed)
            joined.append(each[0])
        else:
            joined += each
    return joined


def starts_at_zero(gate: ObservedGate, module: nn.Module) -> bool:
    """Whether nothing but zeros makes its logits; what only scales them does not count."""
    named = dict(module.named_parameters())
    own = [named[name] for name in gate.parameters if name in named and name not in gate.scales]
    return bool(own) and not gate.is_shifted and not any(bool(parameter.any()) for parameter in own)


def take_steps(sp: BuiltModule, x: Tensor, count: int) -> None:
    """A few optimizer steps towards nothing in particular."""
    parameters = [parameter for parameter in sp.module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2) if parameters else None
    for index in range(count if optimizer is not None else 0):
        assert optimizer is not None
        optimizer.zero_grad()
        with torch.enable_grad():
            output = sp.call(x.clone())
            if not output.requires_grad:
                return
            ask("backward", (output * make_cotangent(output, sp.subject.seed + index)).mean().backward, sp.module)
        optimizer.step()


def gradients_of(
    gate: ObservedGate, output: Tensor, module: nn.Module, seed: int
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Gradient of the output, projected, with respect to the gate's weights and to each of its trainable parameters."""
    named = dict(module.named_parameters())
    trainable = [named[name] for name in gate.parameters if name in named and named[name].requires_grad]
    if not output.requires_grad:
        return None, [None for _ in trainable]
    computed = [tensor for tensor in gate.computed or (gate.weights,) if tensor.requires_grad]
    if not computed and not trainable:
        return None, []
    scalar = (output * make_cotangent(output, seed)).sum()
    wanted = [*computed, *trainable]
    found: list[Tensor | None] = list(torch.autograd.grad(scalar, wanted, retain_graph=True, allow_unused=True))
    of_weights, of_parameters = found[: len(computed)], found[len(computed) :]
    known = [gate.lay_out(gradient) for gradient in of_weights if gradient is not None]
    return (torch.cat(known, dim=1) if known else None), of_parameters


def is_handed_on(gate: ObservedGate, output: Tensor) -> bool:
    """Whether the output is made of what the gate weighs, as far as autograd knows."""
    product = gate.product
    if product is None or not (product.requires_grad and output.requires_grad):
        return True
    return torch.autograd.grad(output.sum(), product, retain_graph=True, allow_unused=True)[0] is not None


class _Finder(TorchFunctionMode):
    def __init__(self, module: nn.Module, places: Places, rows: int, length: int) -> None:
        super().__init__()
        self._rows, self._length, self._num_tokens = rows, length, rows * length
        self.gates: list[ObservedGate] = []
        self._module, self._places = module, places
        self._names = {id(parameter): (name,) for name, parameter in module.named_parameters()}
        self._logits: dict[int, _Logits] = {}
        self._weights: dict[int, ObservedGate] = {}
        self._alive: list[Any] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and follow parameters, logits and weights through it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        given = list(_tensors((*args, *kwargs.values())))
        made = list(_tensors((result,)))
        if given and made:
            self._follow(name, given, made, args, kwargs)
        return result

    def _follow(self, name: str, given: list[Tensor], made: list[Tensor], args: Any, kwargs: Any) -> None:
        names = [self._names[id(tensor)] for tensor in given if id(tensor) in self._names]
        logits = [self._logits[id(tensor)] for tensor in given if id(tensor) in self._logits]
        weights = [self._weights[id(tensor)] for tensor in given if id(tensor) in self._weights]
        for gate in weights:
            gate.is_router |= name in _RANKS
            # a product with fewer scales them all alike
            least = 2 if name in _PRODUCTS else min(self._num_tokens, gate.weights[..., 0].numel())
            others = [
                t for t in given if id(t) not in self._weights and id(t) not in self._names and t.numel() >= least
            ]
            if name in _USES and others and not gate.is_used:
                gate.is_used, gate.use, gate.product = True, self._places.here()[0], made[0]
                gate.is_elementwise = any(_is_elementwise(gate, given, other) for other in others)
        if weights and (name in _SAME or (name in _SCALES and not self._is_other(given, self._weights))):
            self._mark(self._weights, made, weights[0])
        elif logits and name in ("softmax", "sigmoid"):
            self._found(name, made[0], logits[0], args, kwargs)
        elif logits and name in _SAME:
            self._mark(self._logits, made, _joined(logits))
        elif logits and name in _SCALES and not self._is_other(given, self._logits):
            joined = _joined(logits)
            known = frozenset(n for part in names for n in part)
            own = [each for each in (*args, *kwargs.values()) if id(each) not in self._logits]
            if name in _SHIFTS:
                shifts = tuple(each for each in own if id(each) not in self._names)
                joined = _joined([joined, _Logits(tuple(known), shifts=shifts)])
            else:
                joined = _joined([joined, _Logits(tuple(known), known)])
            self._mark(self._logits, made, joined)
        elif names and len(names) < len(given) and name in _PRODUCTS:
            self._mark(self._logits, made, _Logits(tuple(n for part in names for n in part)))
        elif names and len(names) == len(given) and name in _SAME:
            self._mark(self._names, made, tuple(n for part in names for n in part))

    def _is_other(self, given: list[Tensor], known: dict[int, Any]) -> bool:
        """Whether some tensor tells one token from another by numbers, and is none of those known."""
        return any(
            tensor.is_floating_point()
            and tensor.numel() >= self._num_tokens
            and id(tensor) not in known
            and id(tensor) not in self._names
            for tensor in given
        )

    def _found(self, name: str, weights: Tensor, logits: _Logits, args: Any, kwargs: Any) -> None:
        is_softmax = name == "softmax"
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1) if is_softmax else -1
        lay_out = self._layout(weights, dim if isinstance(dim, int) else -1)
        if lay_out is None or lay_out(weights).shape[-1] > (_MOST_WEIGHTS if is_softmax else _MOST_SWITCHES):
            return
        path = logits.parameters[0].rpartition(".")[0]
        where = Place(module=path, module_class=type(part_at(self._module, path)).__name__)
        line = self._places.here()[0]
        where = Place(**{**vars(line), "module": where.module, "module_class": where.module_class})
        parameters = tuple(dict.fromkeys(logits.parameters))
        gate = ObservedGate(
            where=where, weights=lay_out(weights), is_softmax=is_softmax, parameters=parameters, scales=logits.scales
        )
        gate.computed, gate.lay_out = (weights,), lay_out
        gate.is_shifted = any(_shifts(each, is_softmax) for each in logits.shifts)
        self.gates.append(gate)
        self._mark(self._weights, [weights], gate)

    def _layout(self, weights: Tensor, dim: int) -> Callable[[Tensor], Tensor] | None:
        """How to make them [B, S, ..., K], [B, 1, ..., K] where they are one token's; None where they are no gate's."""
        if not weights.is_floating_point() or weights.ndim < 2 or dim % weights.ndim == 0:
            return None
        if weights.ndim > 2:
            return None if dim % weights.ndim == 1 else lambda tensor: tensor.movedim(dim, -1)
        if weights.shape[0] == self._num_tokens:
            return lambda tensor: tensor.unflatten(0, (self._rows, self._length))
        return (lambda tensor: tensor[:, None]) if weights.shape[0] == self._rows else None

    def _mark(self, book: dict[int, Any], made: Iterable[Tensor], value: Any) -> None:
        for tensor in made:
            book[id(tensor)] = value
            self._alive.append(tensor)  # or its id would be given to another


def _joined(logits: list[_Logits]) -> _Logits:
    return _Logits(
        tuple(dict.fromkeys(name for part in logits for name in part.parameters)),
        frozenset().union(*(part.scales for part in logits)),
        tuple({id(shift): shift for part in logits for shift in part.shifts}.values()),  # once, or a loop doubles them
    )


def _shifts(value: Any, is_softmax: bool) -> bool:
    """Whether adding it makes other weights of equal logits: a softmax forgets what is added to all of them."""
    if isinstance(value, Tensor):
        flat = value.detach().flatten()
        return bool(flat.any()) and (not is_softmax or bool((flat != flat[0]).any()))
    return not is_softmax and isinstance(value, (int, float)) and value != 0


def _is_elementwise(gate: ObservedGate, given: list[Tensor], other: Tensor) -> bool:
    """Whether the weights, whole, multiply something of their own shape."""
    shape = gate.weights.shape
    return (
        shape[-1] > 1 and other.shape == shape and any(tensor.shape == shape for tensor in given if tensor is not other)
    )


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _offered(sp: BuiltModule, x: Tensor) -> ObservedGate:
    gate = sp.subject.gate
    assert gate is not None
    weights = ask("gate", lambda: gate(sp.module, x.clone()), sp.module)
    if weights.ndim < 3 or not weights.is_floating_point():
        raise SubjectFailedError("gate", _wrong(weights), sp.module)
    total = weights.detach().double().sum(-1)
    is_softmax = weights.shape[-1] > 1 and bool(((total - 1).abs() < torch.finfo(weights.dtype).eps ** 0.5).all())
    place = origin(sp.subject, sp.module, lambda: gate(sp.module, x.clone()))
    parameters = last_parameters(weights, sp.module)
    return ObservedGate(
        where=place, weights=weights, is_softmax=is_softmax, parameters=parameters, use=place, is_used=True
    )


def last_parameters(output: Tensor, module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters of the last product behind a tensor that autograd knows, and what is added after."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found: list[str] = []
    level, seen = [output.grad_fn], set[int]()
    while level:
        following = []
        for node in level:
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            leaf = getattr(node, "variable", None)
            found += [names[id(leaf)]] if id(leaf) in names else []
            following += [each for each, _ in node.next_functions]
        if found and any(parameter_at(module, name).ndim > 1 for name in found):
            break
        level = following
    return tuple(dict.fromkeys(found))


def _wrong(weights: Tensor) -> Any:

    return Caught(WrongOutputError(f"gate must return weights [B, S, G, branches], got {list(weights.shape)}"))
