"""Parameters that an optimizer, as the subject's own code builds it, leaves out, holds twice, or holds copies of."""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.hooks.turned_away import Conditions
from nsa_doctor.probes.internal import memory_of, part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.offered_optimizers import Builder, builders
from nsa_doctor.probes.model.optimizer_answers import Collected, collected, is_optimizer
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.subject.contract import Subject

Kind = Literal["left out", "twice", "copies"]
_PART_OF_NAME = re.compile(
    r"(^|_)(lora|adapters?|heads?|only|embed\w*|muon|hidden|backbone|trunk|gen|generator|g|d|disc|discriminator|"
    r"freeze|frozen|finetun\w*|fine|tune|probe|policy|actor|critic|value|q|encoder|decoder|prompts?|peft|matri\w+|"
    r"vectors?|bias(es)?|norms?|no_?decay|decay_params?|router|experts?|teacher|student|ema|aux|new|pretrained|slow|"
    r"fast|large|small|sparse|dense|text|vision|visual|image|audio|extra|other|rest|classifier|projector|codebook|"
    r"trainable|meta|inner|outer|alpha|arch|quant\w*|scales?|temperature|logit\w*|pos\w*|stage\w*|partial|last)(_|$)"
)
_DEPENDS = re.compile(  # a choice that its caller or the module's settings make, of which one is seen
    r"freez|\bstages?\b|\bphase|\btrain_(?!config|cfg|conf|args)|skip|\bonly|_only|backbone|world_size|\brank\b|keywords|exclude|\bname\s*[:=]"
    r"|\bif (not )?self\.\w+(\s*[=!<>:]|\s+(and|or|is))"
)
_ON_PURPOSE = re.compile(
    r"\bonly\b|exclud|except\b|\blora|adapter|muon|\bfreez(e|ing)|ignor|subset|left out|leav\w+ out|\bomit|"
    r"(an)?other optimi|separate(ly)? (optimi|step)|not (trained|optimi[sz]ed|updated|stepped)|hidden matri|"
    r"backbone|generator|discriminator|fine-?tun|on purpose|deliberate|intentional|by hand|elsewhere|its own optim",
    re.IGNORECASE,
)
_OF_REQUIRING = re.compile(r"only [^.\n]*(requir\w+.grad|trainable|need\w* grad|with grad)", re.IGNORECASE)
_MASTERS = re.compile(r"master|shadow|fp32|float32|\bema\b|averag|slow|anchor|copy of", re.IGNORECASE)
_REFUSED = re.compile(r"more than one parameter group")
_OF_PART_FILES = re.compile(
    r"(^|_)(fine_?tun\w*|lora|adapters?|probe|probing|peft|prompts?|gan|distill\w*|heads?)(_|$)"
)
_LENGTH, _ROWS = 24, 2
_FEW = 4  # builders that are asked where each call takes long
_LEAST_SHARE = 0.5  # of the parameters that a function which is no method has to take to be meant for them


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with the parameters that a builder takes: the names concerned, of so many that are trained."""

    kind: Kind
    builder: Builder
    names: tuple[str, ...]
    total: int
    place: Place


@dataclass
class _Asked:
    """What a builder gave for a fresh module: the names that it holds, is missing, holds twice and copies of."""

    builder: Builder
    holder: nn.Module
    watch: Conditions
    named: dict[str, nn.Parameter]
    held: set[str] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    has_others: bool = False
    raised_at: Line | None = None

    @property
    def missing(self) -> set[str]:
        return set() if self.has_others else set(self.named) - self.held

    @property
    def serves(self) -> bool:
        """Whether it takes enough of the parameters to be meant for the module."""
        counts = [each.numel() for each in self.named.values()]
        taken = [self.named[name].numel() for name in self.held]
        most = max(len(taken) / max(1, len(counts)), sum(taken) / max(1, sum(counts)))
        return bool(taken) and (self.builder.is_method or most >= _LEAST_SHARE)


def optimizer_faults(subject: Subject, asked: list[str]) -> Iterator[Fault]:
    """Faults of each builder; the names of those that gave an answer go to `asked`.

    Raises NotComparableError where no pass shows which parameters get a gradient.
    """
    seed_everything(subject.seed)
    root = ask("build", lambda: subject.build(subject.seed), None)
    with unobserved():
        offered = builders(root, subject.packages)[: _FEW if subject.is_slow else None]
        answers = _answers(subject, [each for each in offered if not each.of_a_part])
        asked += [each.builder.name for each in answers]
        for each in answers:
            if each.twice:
                yield _fault("twice", each, each.twice)
            if each.copies and not _MASTERS.search(each.builder.text):
                yield _fault("copies", each, each.copies)
        if any(each.missing for each in answers):
            answers += _answers(subject, [each for each in offered if each.of_a_part])
        yield from _left_out(subject, [each for each in answers if each.raised_at is None])


def _answers(subject: Subject, offered: list[Builder]) -> list[_Asked]:
    """Those of the builders that give an answer which is about the module."""
    tried = [attempt(lambda each=each: _ask(subject, each)) for each in offered]
    return [each for each in tried if isinstance(each, _Asked) and (each.raised_at is not None or each.serves)]


def _ask(subject: Subject, builder: Builder) -> _Asked:
    """Ask it of a fresh module. Raises where nothing can be said of what it gives."""
    seed_everything(subject.seed)
    with preserved_state(), torch.enable_grad():
        root = subject.build(subject.seed)
        holder = part_at(root, builder.path)
        before = _trained(holder)
        watch = Conditions(FrameFilter(subject.packages), before.values(), holder)
        with watch.watching():
            answer = attempt(lambda: collected(builder.call(holder)))
        found = _Asked(builder, holder, watch, _trained(holder))
        beside = _kept_by(holder)
    if isinstance(answer, Caught):
        if not builder.is_method or not _REFUSED.search(answer.sentence):
            raise answer.error
        found.raised_at = FrameFilter(subject.packages).of_traceback(answer.error.__traceback__)
        found.twice = [""]
        return found
    _compare(found, answer, root)
    found.held |= {name for name, each in found.named.items() if id(each) in beside}
    return found


def _kept_by(holder: nn.Module) -> set[int]:
    """Ids of what optimizers step that the module keeps, beside the one that is asked for."""
    kept: set[int] = set()
    for value in vars(holder).values():
        several = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
        )
        for each in filter(is_optimizer, several):
            kept |= {id(one) for group in each.param_groups for one in group["params"]}
    return kept


def _compare(found: _Asked, answer: Collected, root: nn.Module) -> None:
    names = {id(each): name for name, each in found.named.items()}
    known = {id(each) for each in (*root.parameters(), *root.buffers())}
    every = answer.every
    found.held = {names[id(each)] for each in every if id(each) in names}
    found.twice = [names[id(each)] for each in answer.repeated if id(each) in names]
    others = [each for each in every if id(each) not in known]
    found.has_others = bool(others)
    left = {name: each for name, each in found.named.items() if name not in found.held}
    if found.held or found.builder.is_attribute:
        found.copies = [name for name, each in left.items() if any(_replaces(each, o, found.builder) for o in others)]


def _replaces(parameter: Tensor, other: Tensor, builder: Builder) -> bool:
    """Whether the other stands where the parameter is meant: of its shape and values, in memory of its own."""
    if other.shape != parameter.shape or other.dtype != parameter.dtype or memory_of(other) == memory_of(parameter):
        return False
    return builder.is_attribute or (parameter.numel() > 1 and torch.equal(other.detach(), parameter.detach()))


def _trained(holder: nn.Module) -> dict[str, nn.Parameter]:
    return {
        name: each
        for name, each in holder.named_parameters()
        if each.requires_grad and not is_lazy(each) and each.numel()
    }


def _left_out(subject: Subject, answers: list[_Asked]) -> Iterator[Fault]:
    """What none of the incomplete builders of a part takes, though some do; each builder's own way to leave it out.

    A builder that a complete one calls is part of that.
    """
    partial = [each for each in answers if each.missing]
    called = {name for each in answers if not each.missing and not each.has_others for name in each.builder.names}
    suspects = [each for each in partial if _is_meant_whole(each.builder) and each.builder.name not in called]
    if not suspects:
        return
    trained = _with_gradient(subject)
    for each in suspects:
        path = each.builder.path
        prefix = _prefix(path)
        taken = {_prefix(other.builder.path) + name for other in partial for name in other.held}
        names = [n for n in each.named if n in each.missing and prefix + n in trained and prefix + n not in taken]
        if names:
            yield _fault("left out", each, names)


def _prefix(path: str) -> str:
    """What the names of parameters of the part at that path begin with."""
    return f"{path}." if path else ""


def _is_meant_whole(builder: Builder) -> bool:
    """Whether neither its name nor what its source says in words is about some parameters alone."""
    if builder.of_a_part or _PART_OF_NAME.search(builder.name.lower()) or _DEPENDS.search(builder.text):
        return False
    if not builder.is_method and _OF_PART_FILES.search(Path(builder.line.file).stem.lower()):
        return False
    return not _ON_PURPOSE.search(_OF_REQUIRING.sub("", _said_in(builder.text)))


def _said_in(text: str) -> str:
    """Comments and texts of a source."""
    tokens = attempt(lambda: list(tokenize.generate_tokens(io.StringIO(text).readline)))
    found = [] if isinstance(tokens, Caught) else tokens
    strings = [
        each.string for each in found if each.type == tokenize.STRING and each.string.lstrip("rf").startswith(_LONG)
    ]
    return "\n".join([*strings, *(each.string for each in found if each.type == tokenize.COMMENT)])


_LONG = ('"""', "'''")


def _with_gradient(subject: Subject) -> set[str]:
    """Names of parameters that a pass in training gives a gradient that is not zero throughout."""
    for mode in ("train", "eval"):
        done = attempt(lambda mode=mode: _gradients(subject, mode))
        if not isinstance(done, Caught):
            return {name for name, each in done.items() if bool((each != 0).any())}
    raise NotComparableError("no pass backward of it shows which parameters get a gradient")


def _gradients(subject: Subject, mode: Any) -> Mapping[str, Tensor]:
    with preserved_state():
        sp = built(subject, mode=mode)
        return forward_backward(sp, sp.input(min(_LENGTH, subject.max_length), batch=_ROWS)).gradients


def _fault(kind: Kind, asked: _Asked, names: list[str]) -> Fault:
    builder = asked.builder
    seen = [line for name in names if name in asked.named and (line := asked.watch.last_of(asked.named[name]))]
    line = asked.raised_at or (seen[0] if seen and kind == "left out" else builder.line)
    place = Place(
        module=builder.path,
        module_class=type(asked.holder).__name__,
        file=line.file,
        line=line.line,
        function=line.function,
    )
    full = tuple(_prefix(builder.path) + name for name in names if name)
    return Fault(kind=kind, builder=builder, names=full, total=len(asked.named), place=place)
