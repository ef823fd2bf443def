"""What padding does to a row's own tokens is found, where a module's forward masks padding."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8
Hide = Callable[[Tensor, Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self, hide: Hide) -> None:
        super().__init__()
        self.qkv, self.hide = nn.Linear(DIM, 3 * DIM), hide

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return x + self.hide(q @ k.mT / DIM**0.5, seen & keep[:, None, :]).softmax(-1) @ v


class Model(nn.Module):
    """Two causal layers without positions; `meant` makes of the mask what each token is."""

    def __init__(self, hide: Hide, meant: Hide = lambda mask, x: mask.bool()) -> None:
        super().__init__()
        self.layers, self.meant = nn.ModuleList(Layer(hide) for _ in range(2)), meant

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        ones = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        keep = ones if attention_mask is None else self.meant(attention_mask, x)
        for layer in self.layers:
            x = layer(x, keep)
        return x


def by_finite(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min)


def by_finite_in_single(scores: Tensor, seen: Tensor) -> Tensor:
    """As softmax(dtype=torch.float32) does: the least float64 is -inf there."""
    return by_finite(scores, seen).float().to(scores.dtype)


def by_infinity(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf)


def by_little(scores: Tensor, seen: Tensor) -> Tensor:
    causal = torch.ones_like(seen).tril()
    return scores.masked_fill(~causal, -torch.inf) - 3.0 * (~seen & causal)


def all_but_the_last_padding(mask: Tensor, x: Tensor) -> Tensor:
    return mask.bool() | mask.roll(-1, 1).bool()


def wants_whole_rows(mask: Tensor, x: Tensor) -> Tensor:
    if not mask.all():
        raise ValueError("rows must be full")
    return mask.bool()


FAULTY = {
    "not finite": (by_infinity, None, "27 of 27 of the row's own tokens are not finite", "left"),
    "too little": (by_little, None, "padding is read: its content changes the row's own tokens", "left"),
    "one too many": (by_finite, all_but_the_last_padding, "padding is read", "left"),
    "refuses": (by_finite, wants_whole_rows, "the subject raises ValueError: rows must be full", "left"),
}


def adapted(*args: Hide) -> Subject:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Model(*args)

    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), make)


def examined(subject: Subject) -> Result:
    return run_check(registry.load("FWD226"), subject)


@pytest.mark.parametrize("name", FAULTY)
def test_padding_that_reaches_a_rows_own_tokens_is_found(name: str) -> None:
    hide, meant, words, side = FAULTY[name]
    (finding,) = examined(adapted(hide) if meant is None else adapted(hide, meant)).findings
    assert words in finding.message
    assert finding.message.endswith(f"on the {side}")
    assert finding.where.file == __file__


class CountsPadding(nn.Linear):
    """Linear attention of positive features; the mask is put on the keys before one is added to them."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        k, v = super().forward(x), x
        if attention_mask is not None:
            k, v = (each.masked_fill(~attention_mask.bool()[..., None], 0.0) for each in (k, v))
        k = 1 + k.tanh()
        sums = (k.mT @ v) / k.sum(1)[..., None]  # here
        return (1 + x.tanh()) @ sums


def test_padding_that_counts_whatever_it_holds_is_found_where_it_counts() -> None:
    request = SubjectRequest(spec="tests:make", lengths=(16,), explore=True, declared=("bidirectional",))
    (finding,) = run_check(registry.load("FWD226"), adapt(request, CountsPadding)).findings
    assert finding.message.startswith("a row's own tokens are other than those of the row alone")
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding


@pytest.mark.parametrize("hide", [by_finite, by_finite_in_single])
def test_padding_that_is_masked_is_silent(hide: Hide) -> None:
    subject = adapted(hide)
    assert "padding is masked by forward(x, attention_mask=...), ones for tokens" in subject.notes
    assert (examined(subject).verdict, examined(subject).notes) == (Verdict.PASS, ())


class Named(Model):
    """A mask of another name and meaning."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask)


class PlainlyNamed(Model):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask)


class NamedByKeys(Model):
    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, src_key_padding_mask)


def is_boolean(mask: Tensor, x: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask of {mask.dtype}")
    return mask


NAMED = {  # what is found out, by the class and what the mask means
    "true for tokens": (Named, is_boolean),
    "true for padding": (NamedByKeys, lambda mask, x: ~is_boolean(mask, x)),
    "ones for tokens": (Named, lambda mask, x: (1 * mask) > 0),
    "true for tokens, plainly named": (PlainlyNamed, is_boolean),
}


@pytest.mark.parametrize("is_offered", [False, True])
@pytest.mark.parametrize("words", NAMED)
def test_a_mask_is_found_by_its_name_and_what_it_does(words: str, is_offered: bool) -> None:
    make, meant = NAMED[words]
    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,))

    def subject(hide: Hide) -> Subject:
        offered = Adapter(make=lambda: make(hide, meant), call=lambda module, x: module(x))
        return adapt(request, (lambda: offered) if is_offered else offered.make)

    healthy = subject(by_finite)
    assert any(note.endswith(f", {words.removesuffix(', plainly named')}") for note in healthy.notes)
    assert examined(healthy).verdict is Verdict.PASS
    assert examined(subject(by_infinity)).verdict is Verdict.FAIL


OTHERS = {
    "reversed": lambda mask, x: mask == 0,
    "of another length": lambda mask, x: mask[:, :3].bool(),
    "unused": lambda mask, x: torch.ones_like(mask, dtype=torch.bool),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_mask_of_another_meaning_is_left_alone(name: str) -> None:
    assert not adapted(by_finite, OTHERS[name]).offers("padded")


def test_a_mask_that_is_added_is_left_alone() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            scores = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
            return self.mix((scores if attention_mask is None else scores + attention_mask[:, None]).softmax(-1) @ x)

    assert not adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), Adds).offers("padded")


def test_a_forward_that_takes_less_than_the_call_of_its_adapter_is_left_alone() -> None:
    class Short(Model):
        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            if x.shape[1] > 16:
                raise ValueError("at most 16 tokens")
            return super().forward(x, attention_mask)

    def subject(pieces: int) -> Subject:
        call = lambda module, x: torch.cat([module(part) for part in x.split(pieces, dim=1)], dim=1)  # noqa: E731
        offered = Adapter(make=lambda: Short(by_finite), call=call)
        return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), lambda: offered)

    assert not subject(16).offers("padded")
    assert subject(64).offers("padded")


def test_the_mask_of_a_forward_that_serves_long_sequences_alone_is_found() -> None:
    class Long(Model):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if x.shape[1] < 16:
                raise ValueError("at least 16 tokens")
            return super().forward(x, mask)

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(32,))
    assert adapt(request, lambda: Long(by_finite)).offers("padded")


def test_a_mask_that_counts_in_training_mode_alone_is_found() -> None:
    class InTraining(Model):
        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return super().forward(x, attention_mask if self.training else None)

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,))
    subject = adapt(request, lambda: InTraining(by_finite))
    assert any(note.endswith("in training mode alone") for note in subject.notes)
    (finding,) = examined(subject).findings
    assert finding.message.startswith("padding is read, and the mask changes nothing")


@pytest.mark.parametrize(("off", "verdict"), [(0, Verdict.PASS), (1, Verdict.FAIL)])
def test_padding_that_is_given_by_a_length_stands_behind_a_rows_tokens(off: int, verdict: Verdict) -> None:
    def by_length(mask: Tensor, x: Tensor) -> Tensor:
        length = mask.bool().sum(1, keepdim=True) + off
        return torch.arange(x.shape[1], device=x.device) < length

    class Both(Model):
        """Reads both ways, so that padding behind a token counts."""

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            ones = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            keep = ones if attention_mask is None else by_length(attention_mask, x)
            for layer in self.layers:
                q, k, v = layer.qkv(x).chunk(3, -1)
                x = x + by_finite(q @ k.mT, keep[:, None]).softmax(-1) @ v
            return x

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,))
    result = examined(adapt(request, lambda: Both(by_finite)))
    assert result.verdict is verdict
    assert all(finding.evidence["side"] == "right" for finding in result.findings)


@pytest.mark.parametrize(("is_heeded", "verdict"), [(True, Verdict.PASS), (False, Verdict.FAIL)])
def test_a_module_that_fills_its_blocks_up_masks_that_under_a_mask_alone(is_heeded: bool, verdict: Verdict) -> None:
    class Blocks(nn.Module):
        """A mean of each block of 12, and of all, for each token; what fills the last block counts without a mask."""

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            missing = -x.shape[1] % 12
            keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
            filled, keep = pad(self.mix(x), (0, 0, 0, missing)), pad(keep, (0, missing), value=mask is None)
            blocks, kept = (each.unflatten(1, (-1, 12)) for each in (filled, keep[..., None]))
            means = (blocks * kept).sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp_min(1)
            share = kept.any(2) if is_heeded else torch.ones_like(kept[:, :, 0])
            whole = (means[:, :, 0] * share).sum(1, keepdim=True) / share.sum(1, keepdim=True)
            return x + (means.expand_as(blocks).flatten(1, 2) + whole)[:, : x.shape[1]]

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), declared=("bidirectional",))
    subject = adapt(request, Blocks)
    assert subject.offers("padded")
    assert examined(subject).verdict is verdict


@pytest.mark.parametrize(("is_as_long", "verdict"), [(True, Verdict.PASS), (False, Verdict.FAIL)])
def test_an_output_is_as_long_as_a_batch_of_rows_that_all_have_padding(is_as_long: bool, verdict: Verdict) -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(DIM, DIM, batch_first=True)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            lengths = torch.full((len(x),), x.shape[1]) if mask is None else mask.sum(1).cpu()
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)  # here
            total = x.shape[1] if is_as_long else None
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=total)[0]

    result = examined(adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), Packs))
    assert result.verdict is verdict
    for finding in result.findings:
        assert finding.message.startswith("where every row of the batch is padded, forward returned float64 [1, 27, 8]")
        assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("num_axes", [2, 4])
@pytest.mark.parametrize(("is_kept", "verdict"), [(True, Verdict.PASS), (False, Verdict.FAIL)])
def test_a_mask_of_padding_that_takes_the_causal_one_away_is_found(
    is_kept: bool, verdict: Verdict, num_axes: int
) -> None:
    class Replaces(nn.Linear):
        def __init__(self) -> None:
            super().__init__(DIM, 3 * DIM)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            q, k, v = super().forward(x)[:, None].chunk(3, -1)
            causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            if mask is not None and mask.ndim != num_axes:
                raise ValueError(f"a mask of {num_axes} axes is wanted")
            seen = causal if mask is None else mask.bool().view(len(x), 1, 1, -1)
            seen = seen & causal if is_kept else seen
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)[:, 0]  # here

    subject = adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), Replaces)
    assert subject.offers("padded")
    result = examined(subject)
    assert result.verdict is verdict
    for finding in result.findings:
        assert finding.message.startswith("under a mask that hides nothing tokens >= 18 change the output before them")
        assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("form", ["of each row", "of every row"])
def test_a_mask_that_is_not_repeated_for_heads_is_found(num_heads: int, form: str) -> None:
    class Folds(nn.Module):
        """Heads stand beside rows, where a mask [B, S] has to be given to each of them and one [S, S] has not."""

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            q = torch.cat(x.chunk(num_heads, -1))
            scores = q @ q.mT
            if mask is not None and form == "of each row":
                mask = mask[:, None, :] & mask[:, :, None]
            if mask is not None:
                scores = scores.masked_fill(~mask.bool(), -1e30)  # here
            return self.mix(torch.cat((scores.softmax(-1) @ q).chunk(num_heads), -1))

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), declared=("bidirectional",))
    subject = adapt(request, Folds)
    assert subject.offers("padded") is (form == "of each row")
    if form == "of each row":
        result = examined(subject)
        assert result.verdict is (Verdict.FAIL if num_heads > 1 else Verdict.PASS)
        for finding in result.findings:
            assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


SHARED = {  # masks that several rows have together, and refusals of any for several
    "of every row": lambda mask, rows: mask.view(1, 1, -1),
    "none for several": None,
}


@pytest.mark.parametrize("name", SHARED)
def test_a_mask_that_several_rows_have_together_is_left_alone(name: str) -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            scores, form = x @ x.mT, SHARED[name] or (lambda mask, rows: mask[:, None])
            if mask is not None and SHARED[name] is None and len(x) != 1:
                raise NotImplementedError("masks are served for a batch of one row")
            if mask is not None:
                scores = scores.masked_fill(~form(mask.bool(), len(x)), -1e30)
            return self.mix(scores.softmax(-1) @ x)

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), declared=("bidirectional",))
    assert not adapt(request, Shares).offers("padded")
