"""Compares a function with the reference in float64: which of its tensors are wrong, in units of what rounding does."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from tests.gallery_functions.conventions import Call, Tensors, answers, arrange
from tests.gallery_functions.scenes import Scene, lay

EMPTY_ROW = -1e30  # a logsumexp below it is that of a row without a key, on which implementations differ
STEP = 1e-4


def errors(function: Callable, like: str, scene: Scene) -> dict[str, float]:
    """Each tensor's largest error in the scene, in units of what rounding explains; an input is named if written to."""
    if scene.history == "seeded dropout":
        return _against_differences(function, like, scene)
    torch.manual_seed(scene.torch_seed)
    call = arrange(like, scene, function)
    if scene.history == "other values before":
        _examined(function, like, arrange(like, replace(scene, seed=scene.seed + 1), function), scene)
    if scene.history == "same beginning before":
        _examined(
            function, like, _same_beginning(call, arrange(like, replace(scene, seed=scene.seed + 1), function)), scene
        )
    if scene.history == "longer before":
        _examined(function, like, arrange(like, _longer(scene), function), scene)
    if scene.history == "values replaced in place":
        _examined(function, like, call, scene)
        call = _with_other_values(call, arrange(like, replace(scene, seed=scene.seed + 1), function))
    before = {name: tensor.detach().clone() for name, tensor in call.given.items()}
    seen, dout = _examined(function, like, call, scene)
    right = _right_answers(call, before, dout, torch.float64)
    plain = _right_answers(call, before, dout, scene.torch_dtype)
    sizes = _term_sizes(before, dout, scene)
    found = {name: _ratio(seen[name], right[name], plain[name], sizes.get(name, 0.0), scene) for name in seen}
    found |= dict.fromkeys(_written(call, before), math.inf)
    if seen["out"].dtype != scene.torch_dtype:
        found["out"] = math.inf
    return found


def wrong(function: Callable, like: str, scene: Scene) -> tuple[str, ...]:
    """The names of the tensors that are wrong, sorted."""
    with nan_in_unwritten_memory():
        found = errors(function, like, scene)
    return tuple(sorted(name for name, error in found.items() if not error <= 1.0))


@contextmanager
def nan_in_unwritten_memory() -> Iterator[None]:
    """`torch.empty` holds NaN, as it may anywhere."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True  # works in deterministic mode alone
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _examined(function: Callable, like: str, call: Call, scene: Scene) -> tuple[Tensors, Tensor]:
    """What the function answers and every gradient, and the gradient of the output that these are for."""
    seen = dict(answers(like, call, function))
    out, leaves = seen["out"], call.leaves
    generator = torch.Generator().manual_seed(scene.seed + 1000)
    dout = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    dout = torch.ones((), dtype=out.dtype).expand(out.shape) if scene.grad_layout == "sum" else dout
    dout = lay(dout, scene.grad_layout) if scene.grad_layout not in ("plain", "sum") else dout
    if scene.history in ("answer kept", "two forwards before backward"):
        other = arrange(like, replace(scene, seed=scene.seed + 1), function)
        list(answers(like, other, function))
    if leaves and scene.history != "answer kept":
        kept = dout.clone()
        found = torch.autograd.grad(out, list(leaves.values()), dout, allow_unused=True) if out.requires_grad else ()
        found = found or (None,) * len(leaves)
        for (name, leaf), grad in zip(leaves.items(), found, strict=True):
            seen[f"d{name}"] = torch.zeros_like(leaf) if grad is None else grad
        if not torch.equal(dout, kept):
            seen["dout"] = torch.full_like(dout, math.nan)
        dout = kept
    seen |= {name: call.given[name] for name in call.written}
    return {name: tensor.detach() for name, tensor in seen.items()}, dout


def _right_answers(call: Call, values: Tensors, dout: Tensor, dtype: torch.dtype) -> Tensors:
    """The reference's answers and gradients in a dtype."""
    copies = {
        name: values[name]
        .to(dtype if values[name].is_floating_point() else values[name].dtype)
        .clone()
        .requires_grad_(call.given[name].requires_grad)
        for name in values
    }
    right = call.truth(copies)
    leaves = {name: copies[name] for name in call.leaves}
    if leaves:
        grads = torch.autograd.grad(right["out"], list(leaves.values()), dout.to(dtype))
        right |= {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    right["dout"] = dout
    return {name: tensor.detach().double() for name, tensor in right.items()}


def _term_sizes(given: Tensors, dout: Tensor, scene: Scene) -> dict[str, float]:
    """How large the terms of dq and of dk are, which cancel where one key takes all weight."""
    names = ("q", "k", "v")
    if not all(name in given for name in names):
        return {}
    q, k, v = (given[name].abs().max().item() for name in names)
    slope = scene.scale * v * dout.abs().max().item()
    return {"dq": slope * k, "dk": slope * q}


def _ratio(seen: Tensor, right: Tensor, plain: Tensor, size: float, scene: Scene) -> float:
    """The error in units of a bound: four times that of plain torch in this dtype, and eight roundings."""
    if seen.shape != right.shape:
        return math.inf
    counted = right > EMPTY_ROW
    right, plain, seen = right[counted], plain[counted], seen.double()[counted]
    if not len(right):
        return 0.0
    largest = max(right.abs().max().item(), size)
    bound = 4 * (plain - right).abs().max().item() + 8 * torch.finfo(scene.torch_dtype).eps * largest
    error = (seen - right).abs().max().item()
    if error == 0.0:
        return 0.0
    return error / bound if math.isfinite(error) and bound else math.inf


def _written(call: Call, before: Tensors) -> Iterator[str]:
    """Arguments that no longer hold what they held."""
    for name, tensor in call.given.items():
        if name not in call.written and not torch.equal(tensor.detach(), before[name]):
            yield name


def _longer(scene: Scene) -> Scene:
    """The scene on twice the length, with other values."""
    return replace(
        scene,
        seed=scene.seed + 1,
        queries=2 * scene.queries if not scene.capacity else scene.queries,
        keys=2 * scene.keys,
        lengths=tuple(2 * each for each in scene.lengths) if not scene.capacity else scene.lengths,
        key_lengths=tuple(2 * each for each in scene.key_lengths),
    )


def _with_other_values(call: Call, other: Call) -> Call:
    """The call with the same tensors, which hold the other call's values."""
    with torch.no_grad():
        for name, tensor in call.given.items():
            tensor.copy_(other.given[name])
    return replace(call, truth=other.truth)


def _same_beginning(call: Call, other: Call) -> Call:
    """The other call, its queries and keys beginning with the same token."""
    with torch.no_grad():
        for name in "qk":
            dim = call.given[name].shape[-1]
            other.given[name].view(-1)[:dim].copy_(call.given[name].reshape(-1)[:dim])
    return other


def _against_differences(function: Callable, like: str, scene: Scene) -> dict[str, float]:
    """Gradients along a random direction against central differences, every call with the same seed of torch."""
    call = arrange(like, scene, function)
    assert scene.dtype == "float64", "differences need float64"
    generator = torch.Generator().manual_seed(scene.seed + 2000)

    def loss() -> Tensor:
        torch.manual_seed(scene.seed)
        out = dict(answers(like, call, function))["out"]
        return (out * torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).sin().reshape(out.shape)).sum()

    grads = torch.autograd.grad(loss(), list(call.leaves.values()))
    found = {}
    for (name, leaf), grad in zip(call.leaves.items(), grads, strict=True):
        way = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        ends = []
        for step in (STEP, -STEP):
            with torch.no_grad():
                leaf.add_(way, alpha=step)
                ends.append(loss().item())
                leaf.sub_(way, alpha=step)
        slope = (ends[0] - ends[1]) / (2 * STEP)
        bound = STEP * (grad * way).norm().item()
        found[f"d{name}"] = abs(slope - (grad * way).sum().item()) / bound
    return found
