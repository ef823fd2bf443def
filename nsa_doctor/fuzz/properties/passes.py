"""Whole passes of a subject: finite, of the right shape, causal, the same alone and in company, arguments untouched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.measurement import Place, Point
from nsa_doctor.fuzz.cases import Layer, Pass
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.properties.tensors import Watch, laid_out
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.inputs import make_cotangent, make_input
from nsa_doctor.probes.numerics.precision import finest_precision, noise_floor
from nsa_doctor.probes.tensors.finite import holds_nonfinite, isfinite
from nsa_doctor.probes.tensors.tolerance import largest
from nsa_doctor.subject.contract import Subject

ORDINARY = (1e-3, 10.0)  # magnitudes at which rounding stays rounding: outputs may be compared
_LARGEST_JUDGED = 5e4  # beyond it a foreign subject may overflow in its own right
_ANOTHER = 5003
_ROUNDINGS = 64  # of the largest output: less than this between two calls needs no closer look
_NEARLY_EXACT = 1e-10
_NUM_CONFIRMATIONS, _NUM_NEEDED = 4, 3


def examine(case: Pass, subject: Subject) -> Iterator[Failure]:
    """What does not hold for this case."""
    subject = replace(_layer_subject(case.layer), device=subject.device) if case.layer else subject
    subject = replace(subject, seed=case.seed)
    trial, given, y, watch = _first_call(case, subject)
    x = given.clone(memory_format=torch.contiguous_format)
    if watch.changed():
        yield trial.failure(Violation.ARGUMENT_WRITTEN, "the call writes into its input")
        x = laid_out(trial.input(case.seed), case.layout).clone(memory_format=torch.contiguous_format)
    is_ordinary = case.values == "normal" and ORDINARY[0] <= case.magnitude <= ORDINARY[1]
    if not bool(isfinite(y).all()):
        if case.layer is None and not _is_judged(x):
            raise NotComparableError(f"the output is not finite for inputs up to {largest(x):.2g} in {trial.sp.dtype}")
        rows = (~isfinite(y)).flatten(2).any(-1)
        message = f"{int(rows.sum())} of {rows.numel()} rows of the output are not finite"
        yield trial.failure(Violation.NOT_FINITE if is_ordinary else Violation.NOT_FINITE_ON_VALUES, message)
        return
    yield from trial.repeated(x, y)
    if case.has_backward and _is_judged(x):
        yield from trial.backward(x)
    if is_ordinary and case.dtype == "wide":
        yield from trial.relations(case.layout == "expanded")


def _is_judged(x: Tensor) -> bool:
    """Whether finite numbers can be expected: norms and scores square their input, which its dtype must hold."""
    return not x.is_floating_point() or largest(x) <= min(_LARGEST_JUDGED, torch.finfo(x.dtype).max ** 0.5)


def _first_call(case: Pass, subject: Subject) -> tuple["_Trial", Tensor, Tensor, Watch]:
    """The trial, its input in the case's strides, the output, and the watch over that input.

    In float64 where the subject runs in it. No other length is called: it might hang where this one does not.
    """
    for dtype in ("float64", None) if case.dtype == "wide" and subject.dtype != "float64" else (None,):
        try:
            sp = built(subject, dtype=dtype)
            trial = _Trial(case, sp, definition_place(sp.module))
            given = laid_out(trial.input(case.seed), case.layout)
            watch = Watch().over(x=given)
            with torch.no_grad():
                y = sp.call(given)
        except SubjectFailedError:
            if dtype is None:
                raise
            continue
        if dtype is None or y.dtype == torch.float64:
            break
    return trial, given, y, watch


@dataclass(frozen=True)
class _Trial:
    case: Pass
    sp: BuiltModule
    place: Place

    def failure(self, violation: Violation, what: str) -> Failure:
        case = self.case
        message = f"{what} at S={case.length}, {case.rows} row{'s' if case.rows > 1 else ''}, {self.sp.dtype}"
        return Failure(violation=violation, message=message, where=self.place, evidence={"length": case.length})

    def input(self, seed: int) -> Tensor:
        """[B, S, ...] of the case's values and magnitude, other in each row."""
        case, device = self.case, torch.device(self.sp.subject.device)
        point = Point(length=case.length, dtype=self.sp.dtype, values=case.values)
        x = torch.cat([make_input(self.sp.subject, point, seed + 7919 * row, device) for row in range(case.rows)])
        return x * case.magnitude if x.is_floating_point() and case.magnitude != 1 else x

    def repeated(self, x: Tensor, y: Tensor) -> Iterator[Failure]:
        """Another call, from contiguous memory, gives the same."""
        with torch.no_grad():
            once = self.sp(x)
            text = self._stray(x, once)
            seeds = range(self.case.seed + 1, self.case.seed + 1 + _NUM_CONFIRMATIONS)
            again = [other for other in map(self.input, seeds) if self._stray(other, self.sp(other))] if text else []
        if len(again) >= _NUM_NEEDED:
            yield self.failure(Violation.CALLS_DIFFER, f"two calls differ {text}")
        elif self.case.layout != "contiguous" and (text := self._differ(x, y, once)):
            what = f"{self.case.layout} input differs {text} from contiguous"
            yield self.failure(Violation.DEPENDS_ON_STRIDES, what)

    def _stray(self, x: Tensor, once: Tensor) -> str:
        """How far another call lies from this one. No floor is measured: it would be made of what is looked for."""
        return self._differ(x, self.sp(x), once, is_floored=False)

    def backward(self, x: Tensor) -> Iterator[Failure]:
        """The gradient is finite where the output is."""
        given = x.clone().requires_grad_(x.is_floating_point())
        y = self.sp(given)
        parameters = [p for p in self.sp.module.parameters() if p.requires_grad]
        leaves = [*([given] if given.requires_grad else []), *parameters]
        if not y.requires_grad or not leaves:
            return
        loss = (y * make_cotangent(y, self.case.seed)).sum()
        grads = ask("backward", lambda: torch.autograd.grad(loss, leaves, allow_unused=True), self.sp.module, y)
        bad = [grad for grad in grads if grad is not None and holds_nonfinite(grad)]
        if bad:
            what = f"{len(bad)} of {len(grads)} gradients are not finite"
            yield self.failure(Violation.GRADIENT_NOT_FINITE, what)

    def relations(self, is_expanded: bool) -> Iterator[Failure]:
        """What follows, and who else is in the batch, changes nothing."""
        cut = self.case.cut % self.case.length
        relations: list[tuple[Violation, str, Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]]] = []
        if cut and Declaration.BIDIRECTIONAL not in self.sp.subject.spec:
            what = f"other tokens from {cut} on change"
            relations.append((Violation.FUTURE_CHANGES_OUTPUT, what, self._other_future))
            relations.append((Violation.PREFIX_DIFFERS, f"the first {cut} tokens alone differ", self._prefix))
        if self.case.rows > 1 and not is_expanded:
            relations.append((Violation.ROW_ALONE_DIFFERS, "the last row alone differs", self._alone))
        for violation, words, relation in relations:
            if text := self._holds_against(relation, self.case.seed):
                yield self.failure(violation, f"{words} {text}")

    def _holds_against(self, relation: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]], seed: int) -> str:
        """How far a relation is off; in low precision most of several inputs must say so, since choices flip."""
        with torch.no_grad():
            text = self._broken(relation, seed)
            if not text or self._eps() <= _NEARLY_EXACT:
                return text
            again = [bool(self._broken(relation, seed + other)) for other in range(1, _NUM_CONFIRMATIONS + 1)]
        return text if sum(again) >= _NUM_NEEDED else ""

    def _broken(self, relation: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]], seed: int) -> str:
        x, full, part = relation(self.input(seed), seed)
        return self._differ(x, part, full)

    def _other_future(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        cut = self.case.cut % self.case.length
        other = torch.cat((x[:, :cut], self.input(seed + _ANOTHER)[:, cut:]), dim=1)
        return x, self.sp(x)[:, :cut], self.sp(other)[:, :cut]

    def _prefix(self, x: Tensor, _seed: int) -> tuple[Tensor, Tensor, Tensor]:
        cut = self.case.cut % self.case.length
        return x, self.sp(x)[:, :cut], self.sp(x[:, :cut])

    def _alone(self, x: Tensor, _seed: int) -> tuple[Tensor, Tensor, Tensor]:
        return x[-1:], self.sp(x)[-1:], self.sp(x[-1:])

    def _eps(self) -> float:
        return finest_precision(self.sp, self.sp.input(min(self.case.length, 17))).eps

    def _differ(self, x: Tensor, part: Tensor, full: Tensor, is_floored: bool = True) -> str:
        """Where the first token lies that is off by more than rounding of every number on the way explains, or ""."""
        if torch.equal(part, full):
            return ""
        difference = (part.double() - full.double()).abs().flatten(2).amax(-1)  # [B, S]
        scale = float(full.double().abs().max())
        near = torch.full_like(difference, _ROUNDINGS * torch.finfo(part.dtype).eps * scale)
        if bool((difference <= near).all()):
            return ""
        eps = self._eps()
        floor = (
            noise_floor(self.sp, x, eps)[:, : difference.shape[1]] if is_floored else _ROUNDINGS * eps * scale + near
        )
        off = ~(difference <= torch.maximum(floor, near))
        if not bool(off.any()):
            return ""
        row, token = (int(index) for index in off.nonzero()[0])
        return f"by {float(difference[row, token]):.2g} (outputs up to {scale:.2g}), first at token {token}"


def _layer_subject(layer: Layer) -> Subject:
    from nsa.config import NSAConfig  # a foreign subject need not wait for nsa
    from nsa_doctor.adapters.nsa_layer import layer_subject

    heads = layer.groups * layer.heads
    sizes = layer.sizes
    config = NSAConfig(
        dim=_DIM,
        n_heads=heads,
        n_kv_groups=layer.groups,
        d_k=layer.d_k,
        d_v=layer.d_v,
        phi=layer.phi,
        gate=layer.gate,
        shared_kv=layer.shared_kv,
        l=sizes.l,
        d=sizes.d,
        l_sel=sizes.l_sel,
        n_sel=sizes.n_sel,
        w=sizes.w,
    )
    return layer_subject(config)


_DIM = 12
