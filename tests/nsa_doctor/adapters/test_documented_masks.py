"""A mask of which only a docstring says what it hides is asked for what it does not hide."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, SLOTS = 8, 3


class Slots(nn.Module):
    """Sets [B, S, width] with mask [B, S] (True at real elements) to vectors [B, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.value = nn.Parameter(torch.randn(SLOTS, DIM)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        share = (self.queries @ x.mT).softmax(1)  # of each element, what goes to which slot
        share = share if mask is None else share * mask[:, None]
        return (share @ self.value(x)).mean(1)


class MaskedTooEarly(Slots):
    """Sets [B, S, width] with mask [B, S] (True at real elements) to vectors [B, width]."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.queries @ x.mT
        scores = scores if mask is None else scores.masked_fill(~mask[:, None], -1e9)
        return (scores.softmax(1) @ self.value(x)).mean(1)  # here


class Undocumented(MaskedTooEarly):
    """Sets to vectors; a mask says which elements are to be filled in."""


class OfAnotherKind(MaskedTooEarly):
    """Sets to vectors; mask: 1 for each real element of what is to be told apart [B, S, S]."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x) * (1 if mask is None else 2)


class Attends(nn.Module):
    """Attention; key_padding_mask: bool tensor of shape (batch, seqlen), and handed on as it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(DIM, 3 * DIM)

    def laid_out(self, mask: Tensor | None) -> Tensor | None:
        return mask

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.proj(x).chunk(3, -1))
        mask = self.laid_out(key_padding_mask)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # raises
        return y.transpose(1, 2).flatten(2)


class AttendsByRows(Attends):
    """Attention; key_padding_mask: bool tensor of shape (batch, seqlen)."""

    def laid_out(self, mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask[:, None, None]


class AttendsByNumbers(Attends):
    """Attention; key_padding_mask: numbers of shape (batch, seqlen), 1.0 for a token."""

    def laid_out(self, mask: Tensor | None) -> Tensor | None:
        return None if mask is None else ((1.0 - mask) * -1e9)[:, None, None].to(self.proj.weight.dtype)


class Refuses(Attends):
    """Attention; key_padding_mask: of shape (batch, seqlen), not served yet."""

    def laid_out(self, mask: Tensor | None) -> Tensor | None:
        if mask is not None:
            raise NotImplementedError("masks are not served yet")
        return None


class Part(Attends):
    """Attention."""

    def forward(self, x: Tensor, head_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.proj(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=head_mask)
        return y.transpose(1, 2).flatten(2)


class Unused(Part):
    """Attention."""

    def forward(self, x: Tensor, head_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        # attn_mask is ignored: rows are packed
        return super().forward(x)


class Mixes(Part):
    """No attention."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return x.cumsum(1) / self.proj.in_features


class HandsOn(nn.Module):
    """Hands the mask of its tokens to a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.part(x, attn_mask=mask if mask is None else mask[:, None, None].bool())


def found(make: Callable[[], nn.Module]) -> Subject:
    request = SubjectRequest(spec="tests:make", lengths=(16,), width=DIM, explore=True, declared=("bidirectional",))
    return adapt(request, make)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD226"), found(make))


def test_a_mask_that_its_docstring_speaks_of_is_held_to_it() -> None:
    assert any("true for tokens, as its docstring says" in note for note in found(MaskedTooEarly).notes)
    (finding,) = examined(MaskedTooEarly).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding


def test_one_that_hides_needs_no_docstring() -> None:
    assert not any("docstring" in note for note in found(Slots).notes)
    assert examined(Slots).findings == ()


@pytest.mark.parametrize("make", [Undocumented, OfAnotherKind])
def test_any_other_is_left_alone(make: type[nn.Module]) -> None:
    assert not found(make).offers("padded")


def test_a_shape_that_only_the_docstring_serves_is_found() -> None:
    (finding,) = examined(Attends).findings
    assert "the subject raises" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# raises\n"), finding


@pytest.mark.parametrize("make", [AttendsByRows, AttendsByNumbers, Refuses])
def test_a_shape_that_is_served_or_refused_on_purpose_is_silent(make: type[nn.Module]) -> None:
    assert examined(make).findings == ()


def test_a_mask_that_a_part_leaves_unread_is_found() -> None:
    (finding,) = examined(lambda: HandsOn(Part())).findings
    assert finding.message.startswith("padding is read, and the mask changes nothing")


@pytest.mark.parametrize("part", [Unused, Mixes])
def test_one_that_is_said_to_be_unused_or_mixes_otherwise_is_left_alone(part: type[nn.Module]) -> None:
    assert not found(lambda: HandsOn(part())).offers("padded")
