"""How a module's losses are asked for: by methods and a forward that take targets, lengths or a mask of tokens."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_LOSS = re.compile(r"(^|_)(loss|losses|nll|nlls)(_|$)")
_OTHERWISE = re.compile(  # of a loss, and none
    r"(save|plot|log|set|reset|dump|show|wait|print|report|register|init|build|make|create|load|update|add|write)_"
    r"|.*(_fn|_func|_weights?|_scales?|_name|_type|_history|_meter|_path|backward.*)$"
)
_TARGETS = frozenset({"target", "targets", "label", "labels", "y", "ys", "tgt", "trg", "wanted", "answers", "gold"})
_TAGS = frozenset({"tag", "tags"})
_LENGTHS = re.compile(r"(.*_)?([a-z]?lens?|lengths?|num_(frames|tokens))")
_OF_TARGETS = re.compile(r"(target|label|tgt|trg|text|token|y|out|output|u)s?_?(lens?|lengths?)")
_OF_OTHERS = re.compile(r"(prompt|prefix|context|cond|src|memory|mem|caption|answer|word|phone|decode|question)")
_SURE_MASKS = re.compile(r"(attention_|key_padding_|src_key_padding_|padding_|pad_|valid_)mask")
_MASKS = re.compile(r"(token_|src_|input_)?mask")  # of padding where forward takes one of the name
_INPUTS = re.compile(
    r"x|xs|z|h|u|s|inputs?(_ids|_values|_features|_embeds)?|ids|idx|tokens?|token_ids|src|source|features?|frames?|seq"
    r"|sequences?|audios?|waves?|waveforms?|speech|images?|pixel_values|series|values|hidden(_states)?|states?|emb\w*"
    r"|data|obs|observations?|signals?|samples?|text|texts|sentences?|words|events?"
)
_ANSWERS = re.compile(r"(y_)?(logits?|preds?|predictions?|outputs?|hat|log_?probs)")
_HANDLED = re.compile(
    r"opt(im\w*)?|batch(_\w+)?|epoch|steps?|iteration|ind(ex|ices)|idx|weights?|scale|eps|device|args|c(on)?fi?g"
)
_FEW_LABELS = 4
_DRAWS = 3


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows x [B, S, ...] of `lengths` [B], with targets of each token, or of each row, where they are asked for."""

    x: Tensor
    lengths: Tensor
    targets: Tensor | None = None

    @property
    def keep(self) -> Tensor:
        """[B, S]: which tokens are no padding."""
        return torch.arange(self.x.shape[1], device=self.x.device) < self.lengths[:, None]

    @property
    def target_lengths(self) -> Tensor:
        """[B]: how many targets rows have that are half as long as their tokens."""
        return self.lengths // 2

    def rows(self, order: Tensor) -> "Batch":
        """The same rows in another order, or some of them."""
        targets = None if self.targets is None else self.targets[order]
        return Batch(x=self.x[order], lengths=self.lengths[order], targets=targets)


@dataclass(frozen=True)
class LossCall:
    """A loss that a module gives: of which of its names the targets and the lengths are given, and how.

    `beside` has what else it is given, as it is.
    """

    name: str
    takes: Mapping[str, str]  # a role: by which parameter
    meant: Callable[[Tensor], Tensor]  # what is given for a mask of tokens
    of_answers: bool  # it takes what forward answers, and not what forward takes
    beside: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, sp: BuiltModule, batch: Batch, seed: int = 0) -> Tensor:
        """The loss of the batch, a number in float64."""
        return self.answer(sp, batch, seed).detach().double().reshape(())

    def answer(self, sp: BuiltModule, batch: Batch, seed: int = 0) -> Tensor:
        """The loss of the batch as it is given. Raises TypeError where that is no number."""
        given: dict[str, Any] = dict(self.beside)
        for role, name in self.takes.items():
            if role == "targets":
                given[name] = None if batch.targets is None else batch.targets.clone()
            elif role == "mask":
                given[name] = self.meant(batch.keep)
            elif role == "other":
                others = sp.input(batch.x.shape[1], len(batch.x), seed=sp.subject.seed + 1)
                given[name] = _of_rows(sp(others))
            else:
                lengths = batch.lengths if role == "lengths" else batch.target_lengths
                given[name] = lengths / batch.x.shape[1] if _is_of_shares(sp) else lengths.clone()
        x = sp(batch.x) if self.of_answers else batch.x.clone()
        x = _of_rows(x) if "other" in self.takes else x
        seed_everything(sp.subject.seed + seed)
        with preserved_state(random_too=False):
            answer = getattr(sp.module, self.name)(x, **given)
        return _number_of(answer)


def loss_calls(sp: BuiltModule, batch: Batch) -> Iterator[tuple[LossCall, Batch]]:
    """Each loss that takes targets, lengths or a mask, and gives a number for this batch, with targets it takes.

    One that draws at random gives another number each time and is left out; so is one whose lengths, where they are
    optional, say something else than that there is no padding when every row is whole.
    """
    for name, function in _functions(sp.module):
        tried = (
            (call, replace(batch, targets=targets))
            for call in _ways(name, function, sp.module.forward)
            for targets in _targets(sp, call, batch)
        )
        served = (each for each in tried if attempt(partial(_serves, sp, function, *each)) is True)
        yield from islice(served, 1)


def moved_by_losses(sp: BuiltModule, batch: Batch, names: Sequence[str]) -> dict[str, str]:
    """Of these parameters those to which a loss of the module's own gives a gradient, by the name of its method.

    One that draws at random is asked several times.
    """
    parameters = {name: each for name, each in sp.module.named_parameters() if name in names and each.requires_grad}
    found: dict[str, str] = {}
    for call in ways_to_call(sp.module, is_alone=True):
        tried = (
            attempt(partial(call.answer, sp, replace(batch, targets=targets), seed))
            for targets in _targets(sp, call, batch)
            for seed in range(_DRAWS)
        )
        for loss in tried:
            if isinstance(loss, Tensor) and loss.requires_grad and len(found) < len(parameters):
                given = attempt(partial(_given_gradients, loss, parameters))
                found |= dict.fromkeys(given, call.name) if isinstance(given, list) else {}
    return found


def _given_gradients(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    gradients = torch.autograd.grad(loss.sum(), list(parameters.values()), allow_unused=True)
    given = [each is not None and bool((each != 0).any()) for each in gradients]
    return [name for name, has_one in zip(parameters, given, strict=True) if has_one]


def _is_of_shares(sp: BuiltModule) -> bool:
    """Whether its forward was found to take lengths as shares of the longest row."""
    return any("share of its tokens" in note for note in sp.subject.notes)


def ways_to_call(module: nn.Module, *, is_alone: bool = False) -> Iterator[LossCall]:
    """Each way in which a loss of the module may be called by its names; none of them has been tried.

    is_alone: those that take nothing but an input too, and those that take two answers.
    """
    for name, function in _functions(module):
        yield from _ways(name, function, module.forward, is_alone=is_alone)
    if is_alone:
        yield from _ways_of_pairs(module)


def _ways_of_pairs(module: nn.Module) -> Iterator[LossCall]:
    """Methods that give a loss of two answers, such as the embeddings of texts and of their sounds."""
    for name, function in _methods(module):
        every = list(_parameters(function).values())
        required = [each.name for each in every if each.default is each.empty and each.kind <= each.KEYWORD_ONLY]
        are_answers = all(_role(each, module.forward) is None and not _HANDLED.fullmatch(each) for each in required)
        if are_answers and len(required) == 2 and [each.name for each in every[:2]] == required:
            yield LossCall(name, {"other": required[1]}, Tensor.bool, of_answers=True)


def _functions(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Its forward, and the methods that by their name and first argument give a loss of an input or an answer."""
    yield "forward", module.forward
    first = next(iter(_parameters(module.forward)), "")
    for name, method in _methods(module):
        own = next(iter(_parameters(method)), "")
        if own and (own == first or _INPUTS.fullmatch(own) or _ANSWERS.fullmatch(own)):
            yield name, method


def _methods(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods of its class that by their name give a loss."""
    for name in dir(type(module)):
        if not _LOSS.search(name) or _OTHERWISE.match(name) or hasattr(nn.Module, name):
            continue
        function = inspect.getattr_static(type(module), name)
        if inspect.isfunction(function) or isinstance(function, (staticmethod, classmethod)):
            yield name, getattr(module, name)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    found = attempt(lambda: inspect.signature(function).parameters)
    return {} if isinstance(found, Caught) else found


def _ways(
    name: str, function: Callable[..., Any], forward: Callable[..., Any], *, is_alone: bool = False
) -> Iterator[LossCall]:
    """How it may be called: with all that it takes of these, or what it has to be given of them; with a mask of each
    kind, and with none of these if it `is_alone`.
    """
    every = list(_parameters(function).values())
    if not every:
        return
    first, parameters = every[0], every[1:]
    takes: dict[str, str] = {}
    for each in parameters:
        if (role := _role(each.name, forward)) is not None:
            takes.setdefault(role, each.name)
    required = {each.name for each in parameters if each.default is each.empty and each.kind <= each.KEYWORD_ONLY}
    is_too_little = "targets" not in takes if name == "forward" else not (takes or is_alone)
    if is_too_little or not required <= set(takes.values()):
        return
    optional = [role for role, each in takes.items() if role != "targets" and each not in required]
    fewer = [{role: each for role, each in takes.items() if role != left} for left in optional]
    for given in [takes, *(each for each in fewer if each or is_alone)]:
        kinds: list[Callable[[Tensor], Tensor]] = [Tensor.bool]
        if "mask" in given:
            kinds = [Tensor.logical_not] if "pad" in given["mask"] else [Tensor.bool, Tensor.long, Tensor.float]
        for meant in kinds:
            yield LossCall(name, given, meant, _ANSWERS.fullmatch(first.name) is not None)


def _role(name: str, forward: Callable[..., Any]) -> str | None:
    lower = name.lower()
    if _OF_TARGETS.fullmatch(lower):
        return "target_lengths"
    if _LENGTHS.fullmatch(lower):
        return None if _OF_OTHERS.match(lower) else "lengths"
    if _SURE_MASKS.fullmatch(lower) or (_MASKS.fullmatch(lower) and name in _parameters(forward)):
        return "mask"
    return "targets" if (_TARGETS | _TAGS) & set(lower.split("_")) else None


def _targets(sp: BuiltModule, call: LossCall, batch: Batch) -> Iterator[Tensor | None]:
    """Targets that it may take: a label for each token, for half as many, for each row; values for each token."""
    if "targets" not in call.takes:
        yield None
        return
    generator = torch.Generator().manual_seed(sp.subject.seed + 1)
    output = sp(batch.x)
    rows, length = batch.x.shape[:2]
    channels = output.shape[-1]
    ranges = [(1, channels - 1) if channels > _FEW_LABELS else (0, max(2, channels)), (0, 2)]
    shapes = [(rows, length), (rows, length // 2), (rows,)]
    for shape in shapes[1:2] if "target_lengths" in call.takes else shapes:
        for least, beyond in ranges:
            yield torch.randint(least, beyond, shape, generator=generator).to(batch.x.device)
    yield torch.randn(output.shape, generator=generator).to(output)


def _serves(sp: BuiltModule, function: Callable[..., Any], call: LossCall, batch: Batch) -> bool:
    whole = replace(batch, lengths=torch.full_like(batch.lengths, batch.x.shape[1]))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        first, second = call(sp, whole), call(sp, whole, seed=1)
        if not bool(first.isfinite()) or not bool(first) or not torch.equal(first, second):
            return False
        optional = {
            role: name
            for role, name in call.takes.items()
            if role != "targets" and inspect.signature(function).parameters[name].default is None
        }
        others = {role: name for role, name in call.takes.items() if role not in optional}
        if not optional:
            return True
        return bool(torch.isclose(first, replace(call, takes=others)(sp, whole), rtol=1e-5))


def _of_rows(answer: Tensor) -> Tensor:
    """[B, D] of an answer for each row, or for each of its tokens."""
    return answer.flatten(1, -2).mean(1) if answer.ndim > 2 else answer


def _number_of(answer: Any) -> Tensor:
    """The number in an answer: itself, the only one of several, or what is called the loss. Raises TypeError."""
    is_mapping = isinstance(answer, Mapping)
    named = answer.get("loss", answer.get("total_loss")) if is_mapping else getattr(answer, "loss", answer)
    each = named if isinstance(named, (tuple, list)) else [named]
    numbers = [part for part in each if isinstance(part, Tensor) and part.numel() == 1 and part.is_floating_point()]
    if len(numbers) != 1:
        raise TypeError(f"expected a number, got {type(answer).__name__}")
    return numbers[0]
