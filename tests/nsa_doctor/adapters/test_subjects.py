"""From a name to a subject: what a module takes is found out, and what cannot be examined is refused in a sentence."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.any_module import adapt, libraries_of, packages_of
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Point
from nsa_doctor.probes.model import needed_time
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Subject, SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest


@pytest.mark.parametrize(
    ("name", "kind", "width"),
    [
        ("causal", "embeddings", 16),
        ("frozen", "embeddings", 16),
        ("no_parameters", "embeddings", 64),
        ("token_model", "tokens", 11),
        ("tuple_output", "tokens", 11),
        ("object_output", "tokens", 11),
        ("dict_output", "tokens", 11),
        ("unusual:loss_first", "embeddings", 16),
        ("unusual:nested", "embeddings", 16),
        ("unusual:by_name", "embeddings", 16),
        ("unusual:in_bfloat16", "embeddings", 16),
        ("unusual:hidden_vocabulary", "tokens", 13),
        ("unusual:lazy", "embeddings", 16),
    ],
)
def test_what_a_module_takes_is_found_out(
    faulty: Callable[..., LocalMeasurer], name: str, kind: str, width: int
) -> None:
    measurer = faulty(name if ":" in name else f"healthy:{name}")
    assert (measurer.subject.input, measurer.subject.width) == (kind, width)
    assert measurer.measure(Point(length=16, dtype=measurer.subject.dtype)).is_finite


def test_a_vocabulary_that_was_found_is_named_on_the_command_line(faulty: Callable[..., LocalMeasurer]) -> None:
    assert faulty("unusual:hidden_vocabulary").subject.options[-2:] == ("--width", "13")


class _OfOtherWidth(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cat((x, x[..., :1]), -1))


def test_what_no_guess_fits_is_refused_and_not_charged_to_the_subject() -> None:
    with pytest.raises(SubjectUnusableError, match="say what it takes with --input and --width"):
        adapt(SubjectRequest(spec="x:y", lengths=(16,)), _OfOtherWidth)


def test_a_guess_that_the_user_answers_for_is_taken() -> None:
    subject = adapt(SubjectRequest(spec="x:y", input="embeddings", width=3, lengths=(16,)), lambda: nn.Linear(4, 4))
    assert (subject.input, subject.width, subject.options[-2:]) == ("embeddings", 3, ("--width", "3"))


def test_a_module_that_fails_at_one_length_is_asked_at_another(faulty: Callable[..., LocalMeasurer]) -> None:
    subject = faulty("unruly:raises", lengths=(17, 20)).subject
    assert (subject.input, subject.width) == ("embeddings", 16)


class _RefusesEmbeddingsAndFailsOnTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 16), nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.ndim != 2:
            raise ValueError("token ids are wanted")
        return self.norm(self.table(ids))


def test_what_fails_on_its_way_counts_before_what_is_refused_at_the_door() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,)), _RefusesEmbeddingsAndFailsOnTokens)
    assert (subject.input, subject.width) == ("tokens", 11)


class _RaisesAfterItsProjection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.qkv(x).view(1, 2, 3)  # raises in torch, as a fused kernel does that cannot serve


def test_what_fails_behind_its_first_projection_is_a_failure_of_the_subject() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,)), _RaisesAfterItsProjection)
    assert (subject.input, subject.width) == ("embeddings", 16)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unruly:not_callable", "must be a callable that returns a new nn.Module, got int"),
        ("unruly:instance", "must be a callable that returns a new nn.Module, got Linear"),
        ("unruly:needs_arguments", "must be callable without arguments"),
        ("unruly:none", "must return an nn.Module, an Adapter or a Subject, got NoneType"),
        ("unruly:gone", "cannot be imported: faulty.unruly has no gone"),
        ("unimportable:make", "cannot be imported: ModuleNotFoundError: No module named 'a_package_that"),
        ("nowhere:make", "cannot be imported: ModuleNotFoundError: No module named 'faulty.nowhere'"),
    ],
)
def test_what_is_no_subject_is_refused(faulty: Callable[..., LocalMeasurer], name: str, message: str) -> None:
    with pytest.raises(SubjectUnusableError, match=r"^subject faulty\.") as refused:
        faulty(name)
    assert message in str(refused.value)


def test_a_factory_that_raises_is_a_failure_of_the_subject(faulty: Callable[..., LocalMeasurer]) -> None:
    with pytest.raises(SubjectFailedError, match="KeyError: 'no such preset'"):
        faulty("unruly:broken_factory")


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(SubjectUnusableError, match=r"nowhere\.yaml"):
        load_subject(SubjectRequest(config="nowhere.yaml"))


def test_a_factory_may_return_a_subject(small: Subject) -> None:
    adapted = adapt(SubjectRequest(spec="x:y", lengths=(16,)), lambda: replace(small, options=()))
    assert adapted == replace(small, options=("--subject", "x:y"))


def test_an_input_kind_that_was_given_is_not_guessed() -> None:
    subject = adapt(SubjectRequest(spec="x:y", input="tokens", lengths=(16,)), lambda: nn.Embedding(5, 8))
    assert (subject.input, subject.width) == ("tokens", 5)
    assert subject.options == ("--subject", "x:y", "--input", "tokens")


def test_an_output_nobody_understands_is_handed_on() -> None:
    assert split_answer({"a": 1}, lambda tensor: True) == ({"a": 1}, {})
    assert split_answer(("a", 1), lambda tensor: True) == (("a", 1), {})


@pytest.mark.parametrize(("field", "value"), [("input", "pictures"), ("width", 0)])
def test_an_impossible_subject_is_refused(small: Subject, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Subject(
            **{**{name: getattr(small, name) for name in ("name", "build", "forward", "input", "width")}, field: value}
        )


class _Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(48, 8)

    def forward(self, x):
        return x + self.table.weight[torch.arange(x.shape[1])]


def test_a_table_of_positions_tells_the_longest_length() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), _Positions)
    assert subject.max_length == 48
    assert "the longest the subject serves" in subject.notes[0]


class _Offset(nn.Module):
    """Positions begin at 2 of a table of 50; `way` says how they are looked up."""

    def __init__(self, way: str, declared: int = 50) -> None:
        super().__init__()
        self.way, self.max_len, self.table = way, declared, nn.Embedding(50, 8)
        self.register_buffer("kept", torch.randn(1, 50, 8))

    def forward(self, x):
        positions = torch.arange(x.shape[1]) + 2
        if self.way == "embedding":
            return x + self.table(positions)
        if self.way == "gathered":
            return x + self.kept.gather(1, positions[None, :, None].expand(1, -1, 8))
        return x + (self.kept[:, 2 : x.shape[1] + 2] if self.way == "sliced" else self.table.weight[positions])


@pytest.mark.parametrize("way", ["embedding", "indexed", "gathered", "sliced"])
def test_a_table_of_positions_with_an_offset_tells_the_longest_length(way: str) -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: _Offset(way))
    name = "kept [1, 50, 8]" if way in ("gathered", "sliced") else "table.weight [50, 8]"
    assert subject.max_length == 48
    assert subject.notes == (
        f"examined up to S=48, the longest the subject serves: beyond it, it reads past the end of {name}",
    )


def test_a_table_too_short_for_what_the_module_declares_is_no_limit() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: _Offset("embedding", 128))
    assert subject.max_length == 64


class _Converted(nn.Module):
    """Adds the first rows of a table of 40, in the dtype of what it is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 40, 8))

    def forward(self, x):
        return self.linear(x) + self.table[:, : x.shape[1]].to(x.dtype).repeat(len(x), 1, 1)


def test_a_table_that_is_cut_too_short_tells_the_longest_length() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), _Converted)
    assert (subject.max_length, subject.notes) == (40, ("examined up to S=40, the longest the subject serves",))


class _CutOff(nn.Linear):
    """Answers 48 tokens at most, or what whole blocks of 24 there are."""

    def __init__(self, *, in_blocks: bool) -> None:
        super().__init__(8, 8)
        self.in_blocks = in_blocks

    def forward(self, x):
        return super().forward(x[:, : x.shape[1] // 24 * 24 or x.shape[1] if self.in_blocks else 48])


def test_as_many_tokens_as_come_back_at_most_are_the_longest_length() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: _CutOff(in_blocks=False))
    note = "examined up to S=48, the longest the subject serves: of longer ones it returns 48 tokens"
    assert (subject.max_length, subject.notes) == (48, (note,))
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: _CutOff(in_blocks=True))
    assert (subject.max_length, subject.notes) == (32, ())


class _AsLongAsWide(nn.Module):
    """Raises at more than 24 tokens, because of an index; 24 is a size of its weight, which has no part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        wide = self.up(x)
        order = torch.arange(x.shape[1])[None, :, None].expand(len(x), -1, 1)
        return self.down(wide.gather(2, order.expand(-1, -1, wide.shape[2])))


def test_a_size_that_has_no_part_in_what_is_raised_is_no_limit() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), _AsLongAsWide)
    assert (subject.max_length, subject.notes) == (32, ())


class _KeptTooShort(nn.Module):
    """Keeps a table as long as the first input and reads it at every later one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.kept = nn.Linear(8, 8), None

    def forward(self, x):
        if self.kept is None:
            self.kept = torch.arange(x.shape[1]).float()[:, None]
        return self.linear(x) * self.kept[torch.arange(x.shape[1])]


def test_what_one_call_keeps_too_short_for_the_next_is_no_limit() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), _KeptTooShort)
    assert (subject.max_length, subject.notes) == (32, ())


def test_the_packages_of_a_module_are_those_of_its_class_and_the_rest_are_libraries() -> None:
    class Own(nn.Module):
        """Holds a part of another package."""

        def __init__(self) -> None:
            super().__init__()
            self.part = type("Part", (nn.Module,), {"__module__": "einops.layers"})()

    assert (packages_of(Own()), libraries_of(Own())) == (("tests",), ("einops",))
    sequence = nn.Sequential(Own().part)
    assert (packages_of(sequence), libraries_of(sequence)) == (("einops",), ())


class _WholeBlocks(nn.Module):
    def forward(self, x):
        return x.unflatten(1, (-1, 16)).flatten(1, 2) if x.shape[1] < 200 else x[:, :, None].squeeze(3)


def test_a_length_that_fails_for_no_declared_reason_is_still_examined() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), input="embeddings", width=8, explore=True), _WholeBlocks)
    assert subject.max_length == 256


def explored(module: Callable[[], nn.Module]) -> Subject:
    asked = SubjectRequest(spec="x:y", lengths=(16,), input="embeddings", width=8, explore=True)
    return adapt(asked, module)


def test_how_long_a_sequence_is_examined_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 10.0 * len(calls))
    monkeypatch.setattr(needed_time, "_waited", lambda: 10.0 * len(calls))  # others have the machine meanwhile
    subject = explored(lambda: _Noted(calls))
    assert len(calls) > 5
    assert (subject.max_length, subject.notes) == (2048, ())


def test_where_a_call_takes_long_by_itself_no_longer_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 10.0 * len(calls))
    monkeypatch.setattr(needed_time, "_waited", lambda: 0.0)
    subject = explored(lambda: _Noted(calls))
    assert subject.max_length == 16
    assert "where a call takes 10 s" in subject.notes[0]


class _Noted(nn.Module):
    """Takes note of each call."""

    def __init__(self, calls: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(x)
        return x


class _Heavy(nn.Module):
    def forward(self, x):
        for _ in range(100):
            x = (x @ x.mT).softmax(-1) @ x
        return x


def test_a_call_that_is_much_work_is_the_longest_that_is_examined() -> None:
    subject = explored(_Heavy)
    assert 128 < subject.max_length < 2048
    assert "a longer call is more work than this examination allows" in subject.notes[0]


class _Unusual(nn.Module):
    """Runs in training mode alone, wants a keyword, and returns its output in a list of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, *, sequence, flag):
        assert self.training
        assert flag
        return [("name", self.linear(sequence))]


def test_an_adapter_says_how_a_module_is_called() -> None:
    adapter = Adapter(make=_Unusual, call=lambda m, x: m(sequence=x, flag=True)[0][1], modes=("train",), max_length=64)
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: adapter)
    assert (subject.width, subject.modes, subject.max_length) == (12, ("train",), 64)
    point = Point(length=16, mode="train")
    assert LocalMeasurer(subject).measure(point).is_finite


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"seams": {"prefil": print}}, "prefil"), ({"modes": ("training",)}, "modes must be some of")],
)
def test_an_adapter_that_cannot_be_is_refused(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adapter(make=_Unusual, **wrong)


@pytest.mark.parametrize("num_rows", [15, 500])
def test_rows_that_a_table_keeps_for_itself_are_no_tokens_where_the_logits_say_so(num_rows: int) -> None:
    class Reserving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(num_rows, 8), nn.Linear(8, num_rows - 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids + 2))

    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,)), Reserving)
    assert (subject.input, subject.width) == ("tokens", num_rows - 2)
