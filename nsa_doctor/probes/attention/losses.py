"""Which loss a training loop really takes: its value beside those of all that it might be, from the same logits."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.internal import tree_leaves, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, built, require_finite
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.model.training import new_optimizer, number
from nsa_doctor.subject.contract import Subject

_SHARE = 1e-3
_ENTROPIES = ("cross_entropy", "nll_loss", "log_softmax", "logsumexp")
_MOST_LATE = 2  # how many tokens a model may hold back its input by itself


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A loss as it was taken: its value, its rounding unit, the ids and logits [B, T, V] it was taken from.

    Logits at position i know the ids up to i - `late`.
    """

    value: float
    eps: float
    ids: Tensor
    logits: Tensor
    late: int


@dataclass(frozen=True)
class Meaning:
    """What a value may be: `words` say what is wrong with it, nothing when it is right."""

    words: str
    value: float


def take_loss(sp: BuiltModule, seam: str, ids: Tensor) -> Taken | None:
    """The loss of these ids by the seam `loss`, `train_step` or `loop`, at fixed weights; None where it is not seen.

    Of a training step it is what backward is called on that counts, where that can be seen; of a loop, its evaluation.
    """
    module, subject = sp.module, sp.subject
    calls: list[tuple[Tensor, Tensor | None]] = []
    roots: list[Tensor] = []
    entropies: list[Tensor] = []

    def look(_module: nn.Module, args: Any, kwargs: Any, answer: Any) -> None:
        given = next((leaf for leaf in tree_leaves((args, kwargs)) if _is_like(leaf, ids)), None)
        if given is not None:
            output = attempt(lambda: checked_answer(subject, answer, given)[0])
            is_a_loss = isinstance(answer, Tensor) and answer.numel() == 1
            if not isinstance(output, Caught):
                calls.append((given.detach().clone(), output.detach().double()))
            elif is_a_loss and module is _module:
                calls.append((given.detach().clone(), None))

    def note(func: Any, args: tuple[Any, ...]) -> None:
        if func is Tensor.backward and seam == "train_step":
            roots.append(args[0].detach().clone())
        elif (logits := _logits_given(func, args)) is not None:
            entropies.append(logits)

    held_back = _held_back(sp, ids)  # before any step
    seed_everything(subject.seed)
    hook = module.register_forward_hook(look, with_kwargs=True)
    try:
        with preserved_state(), torch.enable_grad(), uncompiled(), _Calls(note):
            answer = ask("the loss", _asking(sp, seam, ids), module)
    finally:
        hook.remove()
    loss = roots[0] if len(roots) == 1 else answer
    if not calls:  # the parts of the module are called, and not the module
        calls += [(ids, logits) for each in entropies if (logits := _by_token(each, ids, subject.width)) is not None]
        held_back = _held_back_in_entropies(subject, seam, ids) if len(calls) == 1 else held_back
    if len(calls) != 1 or len(roots) > 1 or (isinstance(loss, Tensor) and loss.numel() != 1):
        return None
    value, (given, seen) = float(loss), calls[0]
    logits = _logits(sp, given) if seen is None else seen
    if logits is None or logits.shape[-1] <= int(ids.max()):  # of embeddings and the like there are no targets
        return None
    late = _lateness(ids, given)
    if late is None or not math.isfinite(value):
        return None
    dtype = loss.dtype if isinstance(loss, Tensor) and loss.is_floating_point() else torch.float32
    return Taken(value=value, eps=torch.finfo(dtype).eps, ids=ids, logits=logits, late=late + held_back)


def _logits(sp: BuiltModule, given: Tensor) -> Tensor | None:
    """Those of a forward that was handed labels and gave the loss alone, asked again without."""
    with preserved_state(), torch.no_grad():
        again = attempt(lambda: sp(given).double())
    return None if isinstance(again, Caught) else again


def meanings(taken: Taken) -> Iterator[Meaning]:
    """All that the value might be, the right ones first: next-token cross-entropy, mean or sum."""
    logits, ids, late = taken.logits, taken.ids, taken.late
    plain = logits.log_softmax(-1)
    yield from _reduced("", plain, ids, 1 - late)
    for words, scores in _misread(logits):
        yield from _reduced(words, scores, ids, 1 - late)
    for shift, words in _SHIFTS.items():
        yield from _reduced(words, plain, ids, shift - late)
        twice = logits.softmax(-1).log_softmax(-1)
        yield from _reduced(f"{_SOFTENED}, and {words}", twice, ids, shift - late)
    yield from (Meaning(_SCRAMBLED, value) for value in _scrambled(plain, ids, 1 - late))
    for right in _reduced("", plain, ids, 1 - late):
        yield Meaning("it is the log-likelihood itself, without a minus", -right.value)


def is_the_same(taken: Taken, value: float) -> bool:
    """Whether two ways to sum the same terms may differ this much.

    Each log-softmax carries some units of the largest logit and of log V, and n terms some √n units of their sum.
    """
    size = float(taken.logits.abs().max()) + math.log(taken.logits.shape[-1]) + 1
    scale = max(1.0, abs(value) / size)  # sums are that many times a term
    return abs(taken.value - value) <= taken.eps * size * scale * (4 + math.sqrt(taken.ids.numel()))


_SOFTENED = "softmax is applied before a cross-entropy that applies it again"
_SCRAMBLED = "logits and targets are flattened in different orders"
_ROLLED = "targets are rolled: behind the last token comes the first"
_SHIFTS = {
    0: "targets are the tokens just read, not the next ones",
    2: "targets are shifted twice, to the token after the next",
    -1: "targets are shifted the wrong way, to the token before",
}


def _misread(logits: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield _SOFTENED, logits.softmax(-1).log_softmax(-1)
    yield "softmax runs over the tokens, not the vocabulary", logits.log_softmax(1)
    if len(logits) > 1:
        yield "softmax runs over the batch, not the vocabulary", logits.log_softmax(0)
    yield "logits are taken for log-probabilities", logits
    yield "probabilities are taken for log-probabilities", logits.softmax(-1)


def _reduced(words: str, scores: Tensor, ids: Tensor, shift: int) -> Iterator[Meaning]:
    """Cross-entropy with the target of position i being id i + shift: each way to sum and to leave out the ends."""
    begin, end = max(0, -shift), min(scores.shape[1], ids.shape[1] - shift)
    if end - begin < 1:
        return
    terms = -scores[:, begin:end].gather(-1, ids[:, begin + shift : end + shift, None]).squeeze(-1)
    for first in range(min(3, end - begin)):
        for last in range(min(3, end - begin - first)):
            part = terms[:, first : terms.shape[1] - last]
            for value in (part.mean(), part.sum(), part.sum() / len(part), part.sum() / part.shape[1]):
                yield Meaning(words, float(value))
    rolled = -scores.gather(-1, ids.roll(-shift, 1)[:, : scores.shape[1], None]).squeeze(-1)
    yield from (Meaning(words or _ROLLED, float(value)) for value in (rolled.mean(), rolled.sum()))


def _scrambled(scores: Tensor, ids: Tensor, shift: int) -> Iterator[float]:
    begin, end = max(0, -shift), min(scores.shape[1], ids.shape[1] - shift)
    part, targets = scores[:, begin:end], ids[:, begin + shift : end + shift]
    if not targets.numel():
        return
    vocabulary = part.shape[-1]
    if len(part) > 1:
        yield float(-part.transpose(0, 1).reshape(-1, vocabulary).gather(-1, targets.reshape(-1, 1)).mean())


def _asking(sp: BuiltModule, seam: str, ids: Tensor) -> Callable[[], Any]:
    module, subject = sp.module, sp.subject
    if seam == "loss":
        loss = subject.loss
        assert loss is not None
        return lambda: loss(module, ids.clone())
    if seam == "loop":
        evaluate = None if subject.loop is None else subject.loop(module).evaluate
        assert evaluate is not None
        return lambda: number(evaluate([ids.clone()]))
    step = subject.train_step
    assert step is not None
    optimizer = new_optimizer(module, 0.0)
    return lambda: step(module, optimizer, ids.clone())


def entropy_place(sp: BuiltModule, seam: str, ids: Tensor) -> Place | None:
    """The line that takes the cross-entropy; None where none of torch's is called."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    seed_everything(sp.subject.seed)
    found: list[Place] = []

    def note(func: Any, _args: tuple[Any, ...]) -> None:
        if getattr(func, "__name__", "") in _ENTROPIES:
            place, is_of_the_subject = places.here()
            found.extend([place] if is_of_the_subject else [])

    with preserved_state(), torch.enable_grad(), uncompiled(), _Calls(note):
        ask("the loss", _asking(sp, seam, ids), sp.module)
    return in_subject(found[-1], sp.module) if found else None


class _Calls(TorchFunctionMode):
    """Hands `note` each function and its arguments; a function mode is a base class by torch's design."""

    def __init__(self, note: Callable[[Any, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function behind the note of it."""
        self._note(func, args)
        return func(*args, **(kwargs or {}))


def _by_token(logits: Tensor, ids: Tensor, vocabulary: int) -> Tensor | None:
    """Logits [B, T, V] of a cross-entropy that was given [B, V, T], [B * T, V] or these; None for any other."""
    if logits.dim() == 3 and logits.shape[1] == vocabulary != logits.shape[2]:
        logits = logits.mT
    elif logits.dim() == 2 and len(logits) % len(ids) == 0:
        logits = logits.unflatten(0, (len(ids), -1))
    fits = logits.dim() == 3 and len(logits) == len(ids) and logits.shape[1] <= ids.shape[1]
    return logits if fits and logits.shape[2] == vocabulary else None


def _is_like(leaf: Any, ids: Tensor) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and leaf.dtype == ids.dtype and len(leaf) == len(ids)


def _lateness(ids: Tensor, given: Tensor) -> int | None:
    """How many tokens were put before the ids when the module was called on them; None when it was on others."""
    for late in range(min(_MOST_LATE, given.shape[1] - 1) + 1):
        rest = given[:, late:]
        if rest.shape[1] <= ids.shape[1] and torch.equal(rest, ids[:, : rest.shape[1]]):
            return late
    return None


def _held_back(sp: BuiltModule, ids: Tensor) -> int:
    """How many positions later than itself a token first changes the logits: a model may shift its input itself."""
    was_training = sp.module.training
    sp.module.eval()
    with torch.no_grad():
        logits, changed = (require_finite(sp(each), ids.shape[1]) for each in (ids, _with_another(ids, sp.subject)))
    sp.module.train(was_training)
    return _first_changed(logits, changed, ids.shape[1] // 2)


def _held_back_in_entropies(subject: Subject, seam: str, ids: Tensor) -> int:
    """The same of the logits that a cross-entropy is given: they may be another pass's, with a token put before."""
    seen: list[Tensor] = []

    def note(func: Any, args: tuple[Any, ...]) -> None:
        given = _logits_given(func, args)
        logits = None if given is None else _by_token(given, ids, subject.width)
        seen.extend([] if logits is None else [logits])

    for given in (ids, _with_another(ids, subject)):
        fresh = built(subject, mode="train")  # a step may move weights
        seed_everything(subject.seed)
        with preserved_state(), torch.enable_grad(), uncompiled(), _Calls(note):
            ask("the loss", _asking(fresh, seam, given), fresh.module)
    if len(seen) != 2 or seen[0].shape != seen[1].shape:
        raise NotApplicableError("its cross-entropies are not of one kind")
    logits, changed = (require_finite(each, ids.shape[1]) for each in seen)
    return _first_changed(logits, changed, ids.shape[1] // 2)


def _logits_given(func: Any, args: tuple[Any, ...]) -> Tensor | None:
    """What a cross-entropy is taken of; None of any other function."""
    is_entropy = getattr(func, "__name__", "") == "cross_entropy" and args and isinstance(args[0], Tensor)
    return args[0].detach().double() if is_entropy else None


def _with_another(ids: Tensor, subject: Subject) -> Tensor:
    """The ids, another one in the middle."""
    other, place = ids.clone(), ids.shape[1] // 2
    other[:, place] = 1 + ids[:, place] % (subject.width - 2)
    return other


def _first_changed(logits: Tensor, changed: Tensor, place: int) -> int:
    difference = (logits - changed).abs().flatten(2).amax(-1).amax(0)
    if not bool((difference > 0).any()):
        raise NotComparableError("no logits depend on the token in the middle")
    # Experts given other numbers of tokens round otherwise: some millionths of what the token itself changes.
    first = int((difference > _SHARE * difference.max()).nonzero()[0, 0]) - place
    if not 0 <= first <= _MOST_LATE:
        raise NotApplicableError(f"the first logits that depend on a token are at {first:+d} from it")
    return first
