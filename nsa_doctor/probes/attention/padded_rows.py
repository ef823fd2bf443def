"""Rows of which a mask marks some tokens as padding: what comes of their own tokens, and where it goes wrong."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import OUTPUT, Place
from nsa_doctor.probes.attention.masked_pools import PoolFault, pool_fault
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import Departure, baseline, with_other_future
from nsa_doctor.probes.numerics.divergence import Divergence, first_divergence
from nsa_doctor.probes.numerics.nonfinite_origin import Returned, origins
from nsa_doctor.subject.contract import Subject

_ROWS = 2
_SECOND = slice(1, 2)  # which is padded


@dataclass(frozen=True)
class ByLengths:
    """Padding that is masked by how many tokens a row has, which stand first: none stands in front of them."""

    call: Callable[[nn.Module, Tensor, Tensor], Tensor]

    def __call__(self, module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        """The output for x [B, S, ...] of which `keep` [B, S] says which tokens are no padding."""
        return self.call(module, x, keep)


def masks_by_place(subject: Subject) -> bool:
    """Whether it takes a mask that says of each token whether it is padding."""
    return subject.padded is not None and not isinstance(inspect.unwrap(subject.padded), ByLengths)


@dataclass(frozen=True)
class PaddedRow:
    """A row of `length` tokens, `num_padding` of them padding on one side, in a batch with one that has none."""

    sp: BuiltModule
    length: int
    num_padding: int
    is_left: bool

    @property
    def own(self) -> slice:
        """Where the row's own tokens stand."""
        return slice(self.num_padding, None) if self.is_left else slice(self.length - self.num_padding)

    @property
    def input(self) -> Tensor:
        """Both rows [2, S, ...], the same own tokens with one padding."""
        return self._filled(0)

    def _filled(self, padding: int) -> Tensor:
        x = self.sp.input(self.length, _ROWS)
        other = self.sp.input(self.length, _ROWS, seed=self.sp.subject.seed + 1 + padding)
        other[:1], other[1:, self.own] = x[:1], x[1:, self.own]
        return other

    def where_finite(self) -> "PaddedRow":
        """The row in the subject's own dtype where it is finite there and not in a wider one.

        Scores hidden by the least float64 are -inf to a softmax in float32, which holds the least of that.
        """
        subject = self.sp.subject
        if self.sp.dtype == subject.dtype or self.output().isfinite().all():
            return self
        own = replace(self, sp=built(subject))
        return own if own.output().isfinite().all() else self

    def output(self, padding: int = 0) -> Tensor:
        """What comes of the padded row's own tokens [1, s, ...] with one padding or another in it."""
        return self._masked(padding)[1:, self.own]

    def alone(self, *, is_masked: bool = False) -> Tensor:
        """What the row's own tokens give by themselves, without a mask or with one of no padding."""
        x = self.input[1:, self.own]
        return self._under(x, torch.ones(x.shape[:2], dtype=torch.bool)) if is_masked else self.sp(x)

    def by_itself(self) -> Tensor:
        """What comes of the padded row in a batch without the other, which is as long as the batch is."""
        return self._masked(0, _SECOND)

    def stretched(self, times: int) -> Tensor:
        """The same with so many times as much padding behind it."""
        x, keep = self._filled(0)[_SECOND], self._keep[_SECOND]
        more = (times - 1) * self.num_padding
        padding = x[:, -1:].expand(-1, more, *x.shape[2:])
        return self._under(torch.cat((x, padding), 1), torch.cat((keep, keep.new_zeros(1, more)), 1))

    def is_mask_lost(self) -> bool:
        """Whether a mask of no padding gives the same, bit for bit."""
        return torch.equal(self._masked(0), self._masked(0, keep=torch.ones_like(self._keep)))

    def future(self) -> tuple[int, Departure, Place] | None:
        """Where later tokens change what is before them under a mask that hides nothing, and only under one.

        The first of these tokens, what they change, and the line.
        """
        cut, every = self.length // 2, torch.ones_like(self._keep)[:1]
        x = self.input[:1]
        other = with_other_future(self.sp, x, cut, 1.0)
        base, before = baseline(self.sp, x), slice(cut)
        if base.departure(self.sp(other)[:, :cut], tokens=before) is not None:
            return None
        under = base.departure(
            self._under(other, every)[:, :cut], tokens=before, expected=self._under(x, every)[:, :cut]
        )
        if under is None:
            return None
        kept = {self.length: cut}
        found = self._parting(lambda: self._under(x, every), lambda: self._under(other, every), kept)
        return cut, under, definition_place(self.sp.module) if found is None else found.mask or found.place

    def pooled(self) -> PoolFault | None:
        """What is wrong with what a part pools under a mask that hides nothing."""
        every = torch.ones_like(self._keep)
        return pool_fault(self.sp, self.length, lambda: self._under(self.input, every))

    def is_mask_counted(self) -> bool:
        """Whether a mask of as many tokens at the other side gives the same: it is taken for a length, not a place.

        Padding then stands behind a row's tokens alone.
        """
        keep = self._keep
        mirrored = self._masked(0, keep=keep.flip(1))
        return torch.equal(self._masked(0), mirrored) and not self.is_mask_lost()

    def is_mask_for_the_end(self) -> bool:
        """Whether no part gives any token something else by the mask, which then says what is pooled and no more.

        A part that reads what is before a token is right for padding behind its row, and knows none in front of it.
        """
        (plain, given), (masked, _) = (self._given_by_parts(each) for each in (torch.ones_like(self._keep), self._keep))
        is_pooled = given is not None and self.length not in given.shape[1:]
        return is_pooled and bool(plain) and len(plain) == len(masked) and all(map(torch.equal, plain, masked))

    def _given_by_parts(self, keep: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """What each call of a part gives for tokens, under this mask, in whatever order of axes; and the module."""
        answers: list[Tensor] = []
        whole: list[Tensor] = []

        def note(part: nn.Module, _given: object, answer: object) -> None:
            first = answer[0] if isinstance(answer, tuple) and answer else answer
            if isinstance(first, Tensor) and part is self.sp.module:
                whole.append(first)
            elif isinstance(first, Tensor) and {self.length, _ROWS * self.length} & set(first.shape):
                answers.append(first.detach().clone())

        handles = [part.register_forward_hook(note) for part in self.sp.module.modules()]
        try:
            self._masked(0, keep=keep)
        finally:
            for handle in handles:
                handle.remove()
        return answers, whole[-1] if whole else None

    def _masked(self, padding: int, rows: slice = slice(None), keep: Tensor | None = None) -> Tensor:
        return self._under(self._filled(padding)[rows], (self._keep if keep is None else keep)[rows])

    def _under(self, x: Tensor, keep: Tensor) -> Tensor:
        """What comes of x [B, S, ...] under a mask of the tokens [B, S] that are no padding."""
        padded, module, mask = self.sp.subject.padded, self.sp.module, keep.to(self.sp.subject.device)
        assert padded is not None
        seed_everything(self.sp.subject.seed)
        return ask("forward with padding", lambda: padded(module, x, mask.clone()), module)

    @property
    def _keep(self) -> Tensor:
        """Which tokens [2, S] are none of padding."""
        keep = torch.ones(_ROWS, self.length, dtype=torch.bool)
        keep[1] = False
        keep[1, self.own] = True
        return keep

    def birth(self) -> Place:
        """Where values that are not finite begin; the module where that is not seen."""

        def rerun(tracer: Tracer) -> Returned:
            tracer.know(self.sp.module, self.input)
            with torch.no_grad(), tracer.phase("forward"):
                return [(OUTPUT, {OUTPUT: self.output()})]

        found = origins(rerun, FrameFilter(self.sp.subject.packages))
        return found[1][0].place if found is not None and found[1] else definition_place(self.sp.module)

    def reading(self) -> Place:
        """Where own tokens first differ with the padding."""
        num_own = self.length - self.num_padding
        kept = {self.length: -num_own if self.is_left else num_own}
        runs = (lambda: self._masked(0)[1:], lambda: self._masked(1)[1:])
        found = self._parting(*runs, kept)
        if found is not None and not found.operation:  # what is of whole rows, as a mean, is the same for the first row
            behind = -num_own if self.is_left else self.length + num_own  # of both rows behind one another
            found = self._parting(*runs, kept | {_ROWS: _ROWS, _ROWS * self.length: behind}) or found
        if found is None:
            return definition_place(self.sp.module)
        if found.mask is not None:
            return found.mask
        return found.place if found.place.file else origin(self.sp.subject, self.sp.module, lambda: self._masked(0))

    def counting(self) -> Place:
        """Where own tokens that padding follows first differ from those of the row alone, whatever it holds."""
        num_own = self.length - self.num_padding
        kept = {self.length: num_own, num_own: num_own}
        found = self._parting(self.by_itself, self.alone, kept)
        return found.place if found is not None and found.computes else self.reading()

    def _parting(
        self, first: Callable[[], Tensor], second: Callable[[], Tensor], kept: dict[int, int]
    ) -> Divergence | None:
        try:
            return first_divergence(self.sp, first, second, kept, self._keep)
        except NotComparableError:
            return None
