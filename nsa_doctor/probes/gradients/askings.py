"""Ways to ask for the gradients of one output, which must all give the same: backward is linear and has no modes."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.lengths import evenly
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.internal import function_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.circumstances import Around, surroundings
from nsa_doctor.probes.model.layouts import LAYOUTS, laid_out

_LOUDNESS = 65536.0  # the first scale of torch.amp.GradScaler
_ROUNDINGS = 1e3
_MOST_FROZEN = 12
_SECOND_DERIVATIVES = re.compile(
    r"(second|higher|2nd)[- ](order[- ])?(derivative|gradient)|double[- ]?backward|create_graph|once[_ -]differentiable"
    r"|(differentia\w+|backward) (\w+ )?twice|twice[- ](differentia|backward)"
    r"|support automatic differentiation|numpy\(\) on tensor that requires grad",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Gradients:
    """By the parameter's name, and by the path of the module whose output they are of."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    functions: list[tuple[type, dict[str, Tensor]]] = field(default_factory=list)  # written by hand: handed, handed on

    def times(self, loudness: float) -> "Gradients":
        """All of them so many times as large."""
        if loudness == 1:
            return self
        kept = [(written, _times(each, loudness)) for written, each in self.functions]
        return Gradients(_times(self.parameters, loudness), _times(self.outputs, loudness), kept)

    def follow(self, output: Tensor, handed: Callable[[Tensor], Tensor] | None) -> None:
        """Keep what each hand-written backward behind this output is handed, made so of what it would be, and gives."""
        for node, written in _hand_written(output):
            kept: dict[str, Tensor] = {}
            self.functions.append((written, kept))
            node.register_hook(_keeping_of_node(kept))
            if handed is not None:
                node.register_prehook(_handing(handed))


@dataclass(frozen=True)
class Asking:
    """How gradients are asked for, in words: along which cotangent, made of a contiguous one [B, S, ...].

    `like` makes the plain cotangent that has to give the same, `loudness` times as large. `may_refuse` says of what it
    raised whether a module need not serve it, `refuses_forward` where its forward need not. `given` makes what is
    passed of the input, `given_like` the plain tensor of equal values; `handed` makes what hand-written backwards are
    handed, `handed_like` the plain tensor of equal values; `around` makes the pass and `backward` its second half, of
    the output along the cotangent; `rounding` is how much coarser it may be.
    """

    words: str
    cotangent: Callable[[Tensor], Tensor] = lambda cotangent: cotangent
    like: Callable[[Tensor], Tensor] = lambda cotangent: cotangent
    create_graph: bool = False
    freezes: tuple[str, ...] = ()  # parameters by name
    trains: bool = False
    loudness: float = 1.0
    may_refuse: Callable[[SubjectFailedError], bool] = lambda failure: False
    given: Callable[[Tensor], Tensor] = torch.clone
    given_like: Callable[[Tensor], Tensor] = torch.clone
    handed: Callable[[Tensor], Tensor] | None = None
    handed_like: Callable[[Tensor], Tensor] | None = None
    around: Around = lambda module, work: work()
    backward: Callable[[Tensor, Tensor], None] | None = None
    rounding: float = 1.0
    refuses_forward: bool = False


def _hand_written(output: Tensor) -> Iterator[tuple[Any, type]]:
    """The nodes behind an output whose backward is written by hand, and their autograd functions."""
    waiting, seen = [output.grad_fn], set()
    for node in waiting:  # grows
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        waiting += [following for following, _ in node.next_functions]
        written = function_of(node)
        if written is not None and not written.__module__.startswith("torch."):
            yield node, written


def _handing(handed: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda gradients: tuple(None if each is None or not each.ndim else handed(each) for each in gradients)


def _times(gradients: Mapping[str, Tensor], loudness: float) -> dict[str, Tensor]:
    return {name: each * loudness for name, each in gradients.items()}


def circumstances(built: BuiltModule) -> Iterator[Asking]:
    """Ways that differ in what surrounds the pass, and in the memory that the input lies in."""
    for each in surroundings(built.subject, built.dtype):
        yield Asking(each.words, around=each.around, rounding=each.rounding, refuses_forward=True)
    for layout in LAYOUTS:
        like = _first_row_for_all if layout == "expanded" else torch.clone
        given = partial(laid_out, layout=layout)
        yield Asking(f"{layout} input", given=given, given_like=like, refuses_forward=True)
    if built.subject.input == "embeddings":
        for words, made in (("an input that requires a gradient", _wanting), ("a leaf as input", _leaf)):
            yield Asking(words, given=made, refuses_forward=True)


def askings(built: BuiltModule) -> Iterator[Asking]:
    """Every other way that applies to the module."""
    yield Asking(
        "a cotangent of expanded memory",
        cotangent=lambda cotangent: cotangent[..., :1].expand_as(cotangent),
        like=lambda cotangent: cotangent[..., :1].expand_as(cotangent).contiguous(),
    )
    yield Asking(
        "a cotangent of transposed memory",
        cotangent=lambda cotangent: cotangent.transpose(0, 1).contiguous().transpose(0, 1),
    )
    yield Asking("transposed memory handed to the hand-written backward", handed=_turned_in_memory)
    yield Asking("expanded memory handed to the hand-written backward", handed=_first_for_all, handed_like=_the_same)
    yield Asking("create_graph=True", create_graph=True, may_refuse=refuses_second_derivatives)
    for path, frozen in _parts_to_freeze(built.module):
        yield Asking(f"{path or 'another parameter'} frozen", freezes=frozen)
    if {"train", "eval"} <= set(built.subject.modes):
        yield Asking("training mode", trains=True)
    if built.dtype not in ("float16", "bfloat16"):  # whose range ends where training scales the loss down
        yield Asking(
            f"a cotangent {_LOUDNESS:.0f} times as large",
            loudness=_LOUDNESS,
        )


def refuses_second_derivatives(failure: SubjectFailedError) -> bool:
    """Whether what a pass raised says that it cannot be differentiated twice, in torch's words or in its own."""
    error = failure.caught.error
    return isinstance(error, NotImplementedError) or _SECOND_DERIVATIVES.search(str(error)) is not None


def _parts_to_freeze(module: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The first parameter, then parts that hold some that are trained, each of which leaves others to be."""
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    if len(trained) < 2:
        return
    yield "", (trained[0],)
    parts = dict.fromkeys(name.rpartition(".")[0] for name in trained)
    held = {path: tuple(name for name in trained if name.rpartition(".")[0] == path) for path in parts if path}
    paths = list(held)
    for path in (paths[index] for index in evenly(range(len(paths)), _MOST_FROZEN)):
        if len(held[path]) < len(trained):
            yield path, held[path]


def has_gradients(built: BuiltModule, x: Tensor) -> bool:
    """Whether the output depends on a parameter that is trained; none does where `eval()` merges them into others."""
    with torch.enable_grad(), unobserved():
        return any(each.requires_grad for each in built.module.parameters()) and built.call(x).requires_grad


def gradients(built: BuiltModule, x: Tensor, cotangent: Tensor, asking: Asking | None = None) -> Gradients | None:
    """Gradients of parameters by name and of modules' outputs by path; None where training gives another output."""
    module, how = built.module, asking or Asking("plainly")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if how.trains and not _gives_the_same_in_training(built, x):
        return None
    was_training, found = module.training, Gradients()
    for parameter in trained:
        parameter.grad = None
    frozen = [each for name, each in module.named_parameters() if name in how.freezes]
    for parameter in frozen:
        parameter.requires_grad_(False)
    x = how.given(x)
    watching = [each.register_forward_hook(_keeping(found, path)) for path, each in module.named_modules()]
    try:
        module.train(how.trains or was_training)
        how.around(module, lambda: _differentiate(built, x, cotangent, how, found))
        named = ((name, each.grad) for name, each in module.named_parameters())
        found.parameters.update({name: grad.detach() for name, grad in named if grad is not None})
        # One that gets none any more is as far from its gradient as one of zeros.
        others = ((name, each) for name, each in module.named_parameters() if each.requires_grad and not is_lazy(each))
        found.parameters.update({n: torch.zeros_like(p) for n, p in others if n not in found.parameters})
        return found
    finally:
        for handle in watching:
            handle.remove()
        module.train(was_training)
        for parameter in trained:
            parameter.requires_grad_(True)
            parameter.grad = None


def _differentiate(built: BuiltModule, x: Tensor, cotangent: Tensor, how: Asking, found: Gradients) -> None:
    with torch.enable_grad():  # each thread has a mode of its own
        output = built.call(x)
        given = how.cotangent(cotangent.to(output)) * how.loudness
        if how.freezes and not output.requires_grad:
            return
        found.follow(output, how.handed)
        backward = how.backward or partial(Tensor.backward, create_graph=how.create_graph)
        ask("backward", lambda: backward(output, given), built.module, output)


def _turned_in_memory(gradient: Tensor) -> Tensor:
    """The same values in memory in which the first dimension moves fastest."""
    backwards = tuple(reversed(range(gradient.ndim)))
    return gradient.permute(backwards).contiguous().permute(backwards)


def _first_for_all(gradient: Tensor) -> Tensor:
    return gradient[..., :1].expand_as(gradient)


def _the_same(gradient: Tensor) -> Tensor:
    return _first_for_all(gradient).contiguous()


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _wanting(x: Tensor) -> Tensor:
    return _leaf(x).clone()


def _first_row_for_all(x: Tensor) -> Tensor:
    return x[:1].expand_as(x).contiguous()


def _keeping(found: Gradients, path: str) -> Callable[[nn.Module, Any, Any], None]:
    def note(grad: Tensor) -> None:  # what a hook returns takes the gradient's place
        found.outputs.setdefault(path, grad.detach())

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(note)

    return keep


def _keeping_of_node(kept: dict[str, Tensor]) -> Callable[[Any, Any], None]:
    def keep(handed_on: Any, handed: Any) -> None:
        for kind, gradients in (("handed", handed), ("on", handed_on)):
            kept.update({f"{kind} {i}": each.detach() for i, each in enumerate(gradients) if each is not None})

    return keep


def function_at_fault(result: Gradients, expected: Gradients, eps: float) -> type | None:
    """The hand-written autograd function whose backward is handed the right gradients and hands on wrong ones.

    None behind one that runs in one of the two alone.
    """
    for (one, now), (other, before) in zip(result.functions, expected.functions, strict=False):
        if one is not other or any(now[name].shape != before[name].shape for name in now.keys() & before.keys()):
            return None
        wrong = _other(now, before, eps)
        if wrong and all(name.startswith("on") for name in wrong):
            return one
    return None


def module_at_fault(result: Gradients, expected: Gradients, names: list[str], eps: float) -> str:
    """The path of the innermost module that is handed the right gradient and hands on a wrong one; else the root's."""
    right = set(expected.outputs) & set(result.outputs)
    right -= set(_other(result.outputs, expected.outputs, eps))
    holding = [path for path in right if path and any(name.startswith(f"{path}.") for name in names)]
    return max(holding, key=lambda path: (path.count("."), path), default="")


def _gives_the_same_in_training(built: BuiltModule, x: Tensor) -> bool:
    """Whether training mode gives the output of eval() to the bit, whatever the seed."""
    with torch.no_grad():
        evaluated = built(x)
        built.module.train()
        try:
            outputs = [built(x), built(x)]
        finally:
            built.module.eval()
    return all(torch.equal(output, evaluated) for output in outputs)


def differing(result: Gradients, expected: Gradients, eps: float) -> list[str]:
    """The parameters, in their order, whose gradients differ by more than rounding, or are not finite."""
    return _other(result.parameters, expected.parameters, eps)


def are_finite(result: Gradients) -> bool:
    """Whether all gradients of parameters are."""
    return all(bool(torch.isfinite(value).all()) for value in result.parameters.values())


def _other(result: Mapping[str, Tensor], expected: Mapping[str, Tensor], eps: float) -> list[str]:
    size = sum(float(value.double().square().sum()) for value in expected.values()) ** 0.5
    return [
        name
        for name, value in expected.items()
        if name in result and not float((result[name].double() - value.double()).norm()) <= _ROUNDINGS * eps * size
    ]


def described(result: Gradients, expected: Gradients, names: list[str]) -> str:
    """How the gradients of these parameters differ, by the last of them."""
    name, affected = names[-1], f"for {len(names)} of {len(expected.parameters)} parameters"
    one, other = result.parameters[name], expected.parameters[name]
    if not bool(torch.isfinite(one).all()):
        return f"gradients that are not finite {affected}"
    share = float((one - other).norm() / other.norm().clamp_min(1e-300))
    return f"other gradients {affected}, by up to {share:.2g} of their norm"
