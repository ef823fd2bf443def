"""A gate in numbers: its parameters, and the weights it gives to standard normal inputs, computed in float64."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nsa_doctor.artifacts.checkpoint.contents import Tensor
from nsa_doctor.artifacts.checkpoint.fault import FaultError, shortened
from nsa_doctor.artifacts.checkpoint.gate_names import FoundGate, Layer
from nsa_doctor.artifacts.checkpoint.record import (
    FLAT_SLOPE,
    NEARLY_ALL,
    NOT_KNOWN,
    Activation,
    Branch,
    Figures,
    GateRecord,
    Probe,
)
from nsa_doctor.artifacts.checkpoint.values import read_values

MOST_VALUES = 2**24
_NUM_INPUTS, _FEWEST_INPUTS = 256, 64
_MOST_ODD_BRANCHES = 16  # of a gate with another number of branches than was said
_MOST_WORK = 2**31  # multiplications of one probe
_ACTIVATIONS: tuple[Activation, ...] = ("softmax", "sigmoid")
_NSA_BRANCHES = ("compressed", "selected", "sliding")
_Array = NDArray[np.float64]


def read_gate(
    found: FoundGate, layer: str, num_branches: int, activation: Activation | None, temperature: float, seed: int
) -> GateRecord:
    """Read one gate's parameters and try it out; what cannot be read or tried is said in `unprobed`."""
    module, odd, last, hidden = shortened(found.module), found.odd, found.last, found.hidden
    if odd is not None:
        return _unprobed(layer, module, odd, found.why_not)
    if found.constant is not None:
        return _constant(found, layer, activation or "softmax", temperature)
    assert last is not None
    why_not = last.why_not or (hidden.why_not if hidden is not None else "")
    if why_not:
        return _unprobed(layer, module, last.weight, why_not)
    try:
        parts = [_parameters(each) for each in (last, hidden) if each is not None]
    except FaultError as fault:
        if fault.kind not in ("limit", "unsupported", "incomplete"):
            raise
        return _unprobed(layer, module, last.weight, f"not read: {fault.sentence}")
    gate = GateRecord(
        layer=layer,
        module=module,
        form=_form(last, hidden, activation or "softmax", temperature),
        weight=_figures(parts[0][0], last.weight),
        bias=None if last.bias is None else _figures(parts[0][1], last.bias),
        hidden_weight=None if hidden is None else _figures(parts[1][0], hidden.weight),
        hidden_bias=None if hidden is None or hidden.bias is None else _figures(parts[1][1], hidden.bias),
    )
    if gate.num_bad:
        return gate
    if last.num_outputs % num_branches and 2 <= last.num_outputs <= _MOST_ODD_BRANCHES:
        num_branches = last.num_outputs
    if last.num_outputs % num_branches:
        why = f"it gives {last.num_outputs} weights, which is no multiple of {num_branches} branches"
        return replace(gate, unprobed=why)
    logits = _logits(parts, seed, _num_inputs(parts)) / temperature
    if not np.isfinite(logits).all():
        return replace(gate, unprobed="its logits overflow on standard normal inputs")
    is_nsa = found.module.endswith("gate.fc2")
    names = _NSA_BRANCHES if is_nsa and num_branches == len(_NSA_BRANCHES) else ()
    tried = {kind: replace(gate, probe=probe(logits, num_branches, kind, names)) for kind in _ACTIVATIONS}
    kind, doubt = (activation, "") if activation else _taken_for(tried, is_nsa, last.num_outputs > num_branches)
    form = _form(last, hidden, kind, temperature)
    return replace(gate, form=form, unprobed=doubt) if doubt else replace(tried[kind], form=form)


def _taken_for(tried: Mapping[Activation, GateRecord], is_nsa: bool, has_heads: bool) -> tuple[Activation, str]:
    """What turns logits into weights where nobody says it, and a doubt where the verdict would hang on that.

    A softmax has no reason to shift all its logits by so much that sigmoids would be flat in all branches. Several sets
    of weights are mostly switches; what is called as nsa calls it is a softmax, as in nsa.
    """
    softmax, sigmoid = tried["softmax"], tried["sigmoid"]
    assert sigmoid.probe is not None
    if has_heads:
        return "sigmoid", ""
    if not softmax.illnesses and sigmoid.probe.flat >= NEARLY_ALL:
        return "sigmoid", ""
    is_bad_switch = bool(sigmoid.illnesses) or sigmoid.probe.is_stuck
    if is_nsa or bool(softmax.illnesses) == is_bad_switch or (not softmax.illnesses and not sigmoid.illnesses):
        return "softmax", ""
    well, ill = ("sigmoid", "softmax") if softmax.illnesses else ("softmax", "sigmoid")
    illness = (softmax.illnesses or sigmoid.illnesses)[0]
    return "softmax", f"healthy as a {well} and {illness} as a {ill}; --activation says which it is"


def _unprobed(layer: str, module: str, tensor: Tensor, why: str) -> GateRecord:
    try:
        weight = _figures(read_values(tensor, MOST_VALUES), tensor)
    except FaultError as fault:
        if fault.kind not in ("limit", "unsupported", "incomplete"):
            raise
        why, weight = f"not read: {fault.sentence}", None
    return GateRecord(layer=layer, module=module, form=NOT_KNOWN, weight=weight, unprobed=why)


def _constant(found: FoundGate, layer: str, kind: Activation, temperature: float) -> GateRecord:
    """Learned numbers that are weights whatever the input: as the bias of a gate without a weight."""
    assert found.constant is not None
    values = read_values(found.constant, MOST_VALUES)
    gate = GateRecord(
        layer=layer,
        module=shortened(found.module),
        form=f"{found.num_outputs} learned numbers -> {_activation(kind, temperature)}",
        weight=None,
        bias=_figures(values, found.constant),
    )
    if gate.num_bad:
        return gate
    logits = np.broadcast_to(values / temperature, (_NUM_INPUTS, values.size))
    return replace(gate, probe=probe(logits, found.num_outputs, kind, ()))


def _parameters(layer: Layer) -> tuple[_Array, _Array]:
    """Weight [outputs, inputs] and bias, zeros where there is none."""
    weight = read_values(layer.weight, MOST_VALUES)
    weight = weight.T if layer.is_turned else weight
    bias = np.zeros(weight.shape[0]) if layer.bias is None else read_values(layer.bias, MOST_VALUES)
    return weight, bias


def _figures(values: _Array, tensor: Tensor) -> Figures:
    finite = values[np.isfinite(values)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    with np.errstate(all="ignore"):
        shrunk = finite / scale if scale else finite  # so that no square overflows
        mean, std = (float(shrunk.mean()) * scale, float(shrunk.std()) * scale) if finite.size else (0.0, 0.0)
        norm = float(np.sqrt(np.square(shrunk).sum())) * scale
    return Figures(
        shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        mean=_finite(mean),
        std=_finite(std),
        norm=_finite(norm),
        zeros=float((values == 0).mean()) if values.size else 0.0,
        num_values=int(values.size),
        num_bad=int(values.size - finite.size),
    )


def _finite(value: float) -> float:
    """The largest number there is where the true one is larger."""
    return value if math.isfinite(value) else math.copysign(float(np.finfo(np.float64).max), value)


def _form(last: Layer, hidden: Layer | None, kind: Activation, temperature: float) -> str:
    steps = [f"linear {last.num_inputs} to {last.num_outputs}", _activation(kind, temperature)]
    if hidden is not None:
        steps = [f"linear {hidden.num_inputs} to {hidden.num_outputs}", "SiLU", *steps]
    return ", ".join(steps)


def _activation(kind: Activation, temperature: float) -> str:
    return kind if temperature == 1.0 else f"{kind} at temperature {temperature:g}"


def _num_inputs(parts: Sequence[tuple[_Array, _Array]]) -> int:
    """As many as there is time for."""
    size = sum(weight.size for weight, _ in parts)
    return max(_FEWEST_INPUTS, min(_NUM_INPUTS, _MOST_WORK // max(size, 1)))


def _logits(parts: Sequence[tuple[_Array, _Array]], seed: int, count: int) -> _Array:
    """[inputs, outputs] of the last layer, `parts` being it and the hidden one before it, if any."""
    weight, bias = parts[-1]
    x = np.random.default_rng(seed).standard_normal((count, weight.shape[1]))
    with np.errstate(all="ignore"):
        if len(parts) > 1:
            hidden = x @ weight.T + bias
            x = hidden * _sigmoid(hidden)
            weight, bias = parts[0]
        logits: _Array = x @ weight.T + bias
    return logits


def _sigmoid(logits: _Array) -> _Array:
    with np.errstate(over="ignore"):
        weights: _Array = 1 / (1 + np.exp(-logits))
    return weights


def probe(logits: _Array, num_branches: int, kind: Activation, names: Sequence[str]) -> Probe:
    """What logits [inputs, heads x branches] become as weights; a softmax is over the branches of one head."""
    grouped = logits.reshape(len(logits), -1, num_branches)
    if kind == "softmax":
        shifted = np.exp(grouped - grouped.max(-1, keepdims=True))
        weights = shifted / shifted.sum(-1, keepdims=True)
        slopes = (weights * (1 - weights)).max(-1, keepdims=True)
    else:
        weights = _sigmoid(grouped)
        slopes = weights * (1 - weights)
    num_heads = grouped.shape[1]
    leader, led = _leader(weights, kind)
    outputs = weights.reshape(len(logits), -1)
    labels = names or tuple(str(index) for index in range(num_branches))
    shown = outputs if num_heads == 1 else outputs.reshape(len(logits), num_heads, num_branches).mean(1)
    return Probe(
        num_inputs=len(logits),
        activation=kind,
        branches=tuple(
            Branch(name=label, mean=float(part.mean()), least=float(part.min()), most=float(part.max()))
            for label, part in zip(labels, shown.T, strict=True)
        ),
        entropy=_entropy(weights),
        flat=float((slopes < FLAT_SLOPE).mean()),
        spread=float((outputs.max(0) - outputs.min(0)).max()),
        leader=leader,
        led=led,
        is_stuck=bool(((slopes < FLAT_SLOPE).mean(0) >= NEARLY_ALL).any()),
        dead=_dead(outputs.max(0), num_heads, num_branches),
    )


def _leader(weights: _Array, kind: Activation) -> tuple[int, float]:
    """The branch that takes nearly everything most often, and how often."""
    num_branches = weights.shape[-1]
    if num_branches < 2:
        return 0, 0.0
    total = weights.sum(-1, keepdims=True)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    takes = (shares >= NEARLY_ALL).reshape(-1, num_branches).mean(0)
    if kind == "sigmoid":  # a switch that is all but shut beside others that are shut leads nobody
        takes = ((shares >= NEARLY_ALL) & (weights >= 0.5)).reshape(-1, num_branches).mean(0)
    return int(takes.argmax()), float(takes.max())


def _dead(most: _Array, num_heads: int, num_branches: int) -> tuple[int, ...]:
    """Branches shut for all inputs, in every head; whether heads or branches come first in memory is not known."""
    is_shut = most < FLAT_SLOPE
    by_branch = is_shut.reshape(num_heads, num_branches).all(0) | is_shut.reshape(num_branches, num_heads).all(1)
    dead = tuple(int(index) for index in np.flatnonzero(by_branch))
    return dead if len(dead) < num_branches else ()


def _entropy(weights: _Array) -> float:
    """The mean entropy of the branches' shares over that of even ones."""
    if weights.shape[-1] < 2:
        return 0.0
    total = weights.sum(-1, keepdims=True)
    shares = np.divide(weights, total, out=np.full_like(weights, 1 / weights.shape[-1]), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return float(-(shares * logs).sum(-1).mean() / math.log(weights.shape[-1]))
