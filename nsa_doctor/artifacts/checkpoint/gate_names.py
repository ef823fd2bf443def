"""Which tensors of a checkpoint are gates: by name and shape alone, or by a pattern the user gives."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nsa_doctor.artifacts.checkpoint.contents import Composed, Stored, Tensor
from nsa_doctor.artifacts.checkpoint.dtypes import is_real
from nsa_doctor.artifacts.checkpoint.fault import shortened
from nsa_doctor.artifacts.checkpoint.patterns import bounded, matcher

_GATE = re.compile(r"(^|_)gat(e|es|er|ing)(_|\d|$)|^g_proj$|strategy_combine|branch_(weight|mix|logit)")
_WRAPPERS = frozenset(
    {
        *("model", "module", "state_dict", "model_state_dict", "network", "net", "weights", "params", "app"),
        *("ema", "ema_state_dict", "ema_model", "student", "teacher"),
    }
)
_EVERYWHERE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_OPTIMIZER = re.compile(
    r"(^|\.)(optim|optimizer|opt)[^.]*(\.|$)|(^|\.)(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)(\.|$)"
)
_OF_FEED_FORWARD = re.compile(
    r"(^|[._])(mlp|ffn|moe|experts?|router|feed_?forward)([._\d]|$)|(^|_)gate_(up_)?proj(\.|$)"
)
_WEIGHT = re.compile(r"(q|packed_|quantized_)?(weight|kernel)s?(_packed|_q|_quantized)?|w\d*")
_BARE = re.compile(
    r"(\w+_)?gat(e|es|er|ing)(_(weights?|logits?|mix|params?|parameters?))?_?\d*|branch_(weight|mix|logit)s?"
)
# A weight that is computed of these: by weight or spectral norm, pruning, parametrizations, adapters.
_DERIVED = re.compile(r"\.(weight_[gvu]|weight_orig|parametrizations\.\w+\.original\d*|lora_\w+)(?=\.|$)")
_SCALE = re.compile(r"(^|_)(scales?|absmax|scb|q?zeros?|g_idx)(_|$)", re.IGNORECASE)  # of a quantised weight
_LAST_OF_TWO = ("fc2", "2", "3", "out", "proj", "down", "w2", "linear2", "lin2", "output", "1", "4")
_MOST_PER_BRANCH = 256
_MOST_SIMILAR = 8


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A linear map: its weight [outputs, inputs], or [inputs, outputs] when turned, and its bias.

    `why_not` says why it is no such map as far as one can see, though it is called like one.
    """

    module: str
    weight: Tensor
    bias: Tensor | None = None
    is_turned: bool = False
    why_not: str = ""

    @property
    def num_outputs(self) -> int:
        return self.weight.shape[1 if self.is_turned else 0]

    @property
    def num_inputs(self) -> int:
        return self.weight.shape[0 if self.is_turned else 1]


@dataclass(frozen=True, kw_only=True)
class FoundGate:
    """A gate's last layer, the hidden one before it, or numbers that are weights by themselves.

    `odd` is a tensor that is called like a gate and not understood as one, for the reason `why_not`.
    """

    module: str
    last: Layer | None = None
    hidden: Layer | None = None
    constant: Tensor | None = None
    odd: Tensor | None = None
    why_not: str = ""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its parameters, the hidden layer's first."""
        layers = (layer for layer in (self.hidden, self.last) if layer is not None)
        parts = [part for layer in layers for part in (layer.weight, layer.bias)]
        return tuple(part for part in (*parts, self.constant) if part is not None)

    @property
    def num_outputs(self) -> int:
        """How many weights it gives; 0 where that is not known."""
        if self.last is not None:
            return self.last.num_outputs
        return self.constant.shape[-1] if self.constant is not None else 0


def find_gates(tensors: Sequence[Tensor], num_branches: int) -> list[FoundGate]:
    """Gates of branches: `gate.fc2`, and linear maps of a gate-like name with as many outputs as there are branches.

    Beside them what is called like a gate's weight and cannot be understood as one, which may be one or not.
    """
    layers = _layers(tensors, num_branches)
    found = []
    for module, layer in layers.items():
        if not _is_gate(module) or _DERIVED.search(module):
            continue
        hidden = _before(module, layer, layers)
        is_named = module.endswith("gate.fc2")
        is_per_head = "strategy_combine" in module and layer.num_outputs % num_branches == 0
        if is_named or layer.num_outputs == num_branches or (is_per_head and _fits(layer, num_branches)):
            found.append(FoundGate(module=module, last=layer, hidden=hidden))
    found = _without_hidden(found)
    derived = {gate.module: gate for gate in _derived(tensors)}
    plain = [gate for gate in found if not any(gate.module in (of, f"{of}.base_layer") for of in derived)]
    known = {tensor.name for gate in found for tensor in gate.tensors}
    others = (tensor for tensor in tensors if tensor.name not in known)
    return [*plain, *derived.values(), *_not_understood(others, num_branches)]


def _derived(tensors: Sequence[Tensor]) -> Iterator[FoundGate]:
    """Gates whose weight is computed of several tensors when the model runs."""
    for tensor in tensors:
        match = _DERIVED.search(tensor.name)
        if match and _may_be_gate(tensor.name[: match.start()]) and not _OPTIMIZER.search(tensor.name):
            why = f"its weight is computed of several tensors, {shortened(match[1])} among them"
            yield FoundGate(module=tensor.name[: match.start()], odd=tensor, why_not=why)


def _not_understood(tensors: Iterable[Tensor], num_branches: int) -> Iterator[FoundGate]:
    """Weights that are called like those of a gate, and are of no shape, layout or dtype that is understood."""
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        if _DERIVED.search(tensor.name) or _OPTIMIZER.search(tensor.name) or not _may_be_gate(tensor.name):
            continue
        if not (_WEIGHT.fullmatch(leaf) and _may_be_gate(module)) and not _BARE.fullmatch(leaf):
            continue
        if tensor.shape == (num_branches,) and _BARE.fullmatch(leaf) and not why_no_weight(tensor, 1):
            yield FoundGate(module=tensor.name, constant=tensor)
        elif len(tensor.shape) != 1 or module.endswith("gate.fc2") or isinstance(tensor, Composed):
            why = why_no_weight(tensor, 2)
            if why:
                yield FoundGate(module=module if _WEIGHT.fullmatch(leaf) else tensor.name, odd=tensor, why_not=why)


def _may_be_gate(path: str) -> bool:
    return _is_gate(path) and not _OF_FEED_FORWARD.search(path)


def why_no_weight(tensor: Tensor, num_sides: int) -> str:
    """Why it cannot be understood as the weight, or with one side the bias, of a linear map; nothing where it can."""
    if isinstance(tensor, Stored | Composed) and tensor.unread:
        return tensor.unread
    if len(tensor.shape) != num_sides:
        return (
            f"its shape is {list(tensor.shape[:8])}, and that of a {'matrix' if num_sides > 1 else 'row'} is understood"
        )
    if 0 in tensor.shape:
        return f"its shape is {list(tensor.shape)}: it has no values"
    is_dequantised = isinstance(tensor, Stored) and tensor.quantised is not None
    if is_real(tensor.dtype) or is_dequantised:
        return ""
    if tensor.dtype.startswith("complex"):
        return f"its values are complex ({tensor.dtype})"
    return f"its values are of dtype {tensor.dtype or 'unknown'}, and what they stand for is not known"


def match_gates(tensors: Sequence[Tensor], pattern: str, num_branches: int) -> list[FoundGate]:
    """Gates among the tensors whose name, or whose module's, the pattern matches as a glob or a regular expression."""
    is_match = matcher(pattern)
    weights = [tensor for tensor in tensors if not _OPTIMIZER.search(tensor.name)]
    with bounded(pattern):
        named = [tensor for tensor in weights if _matches(tensor.name, is_match)]
    layers = _layers(tensors, num_branches)
    found: list[FoundGate] = []
    used: set[str] = set()
    for tensor in named:
        module = _module(tensor.name) if _module(tensor.name) in layers else tensor.name
        if module in used:
            continue
        used.add(module)
        if module in layers:
            found.append(FoundGate(module=module, last=layers[module], hidden=_before(module, layers[module], layers)))
        elif tensor.shape == (num_branches,) and not tensor.name.endswith(".bias") and not why_no_weight(tensor, 1):
            found.append(FoundGate(module=tensor.name, constant=tensor))
        else:
            why = why_no_weight(tensor, 2) or f"a tensor of shape {list(tensor.shape[:8])}, which is no gate's"
            found.append(FoundGate(module=tensor.name, odd=tensor, why_not=why))
    return _without_hidden(found)


def similar_names(tensors: Sequence[Tensor]) -> list[str]:
    """Tensors that look like gates by name alone, with their shapes; one of each kind."""
    kinds: dict[str, str] = {}
    for tensor in tensors:
        if _is_gate(tensor.name) and not _OPTIMIZER.search(tensor.name):
            kind = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", stripped(tensor.name))
            kinds.setdefault(kind, f"{shortened(stripped(tensor.name))} {list(tensor.shape[:8])}")
    return list(kinds.values())[:_MOST_SIMILAR]


def stripped(name: str) -> str:
    """The name without what wraps a whole model."""
    parts = [part for part in name.split(".") if part not in _EVERYWHERE]
    first = next((index for index, part in enumerate(parts) if part not in _WRAPPERS), len(parts) - 1)
    return ".".join(parts[first:])


def unique_layers(modules: Sequence[str]) -> dict[str, str]:
    """What to call each: without wrappers where that says which is meant, else in full."""
    short = {module: _without_last_layer(stripped(module)) for module in modules}
    taken = Counter(short.values())
    return {module: name if taken[name] == 1 else module for module, name in short.items()}


def _without_last_layer(module: str) -> str:
    """`layers.0.attn.gate` for its layer fc2."""
    path, _, last = module.rpartition(".")
    return path if last in _LAST_OF_TWO and _is_gate(path.rpartition(".")[2]) else module


def _matches(name: str, is_match: Callable[[str], bool]) -> bool:
    candidates = {name, stripped(name), _module(name), stripped(_module(name))}
    return any(is_match(candidate) for candidate in candidates if candidate)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _is_gate(path: str) -> bool:
    return any(_GATE.search(part) for part in path.split("."))


def _fits(layer: Layer, num_branches: int) -> bool:
    return layer.num_outputs <= num_branches * _MOST_PER_BRANCH


def _layers(tensors: Sequence[Tensor], num_branches: int) -> Mapping[str, Layer]:
    """Linear maps by module; a matrix of a name of its own is one too, turned when only its other side fits."""
    names = {tensor.name: tensor for tensor in tensors if not _OPTIMIZER.search(tensor.name)}
    scaled = {_module(name): name for name in names if _SCALE.search(name.rpartition(".")[2])}
    layers: dict[str, Layer] = {}
    for name, tensor in names.items():
        if len(tensor.shape) != 2:
            continue
        module, _, leaf = name.rpartition(".")
        if leaf == "weight":
            bias = names.get(f"{module}.bias")
            why = why_no_weight(tensor, 2) or _why_no_bias(bias, tensor) or _why_scaled(tensor, scaled)
            layers[module] = Layer(module=module, weight=tensor, bias=None if why else bias, why_not=why)
        elif leaf != "bias" and not _SCALE.search(leaf):
            is_turned = tensor.shape[0] != num_branches and tensor.shape[1] == num_branches
            layers[name] = Layer(module=name, weight=tensor, is_turned=is_turned, why_not=why_no_weight(tensor, 2))
    return layers


def _why_no_bias(bias: Tensor | None, weight: Tensor) -> str:
    if bias is None or (bias.shape == weight.shape[:1] and not why_no_weight(bias, 1)):
        return ""
    why = why_no_weight(bias, 1) or f"it has {bias.shape[0]} values, and the weight {weight.shape[0]} outputs"
    return f"its bias is not understood: {why}"


def _why_scaled(weight: Tensor, scaled: Mapping[str, str]) -> str:
    """Numbers of eight bits are scaled by a tensor beside them, where there is one."""
    scale = scaled.get(_module(weight.name)) if weight.dtype.startswith("float8") else None
    return f"its values are {weight.dtype}, scaled by {shortened(scale)}" if scale else ""


def _before(module: str, layer: Layer, layers: Mapping[str, Layer]) -> Layer | None:
    """The layer of the same container that feeds this one: `fc1` of `fc2`, the one before in a sequence."""
    container, _, last = module.rpartition(".")
    if not container or last not in _LAST_OF_TWO:
        return None
    inside = [other for path, other in layers.items() if path.rpartition(".")[0] == container and path != module]
    feeding = [other for other in inside if other.num_outputs == layer.num_inputs]
    return feeding[0] if len(inside) == 1 and feeding else None


def _without_hidden(found: list[FoundGate]) -> list[FoundGate]:
    """A layer that feeds another of them is no gate of its own."""
    fed = {gate.hidden.module for gate in found if gate.hidden is not None}
    return [gate for gate in found if gate.module not in fed]


def siblings(gates: Sequence[FoundGate], tensors: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """The other tensors of the module that holds each gate, by the gate's module."""
    own = {gate.module: _without_last_layer(gate.module) for gate in gates}
    holders: dict[str, list[Tensor]] = {_module(path): [] for path in own.values()}
    for tensor in tensors:
        path = _module(tensor.name)
        while path and not _OPTIMIZER.search(tensor.name):
            if path in holders:
                holders[path].append(tensor)
            path = _module(path)
    inside = {module: f"{path}." for module, path in own.items()}
    return {
        module: [each for each in holders[_module(path)] if not f"{each.name}.".startswith(inside[module])]
        for module, path in own.items()
    }
