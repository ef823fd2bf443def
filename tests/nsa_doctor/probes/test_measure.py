"""One measurement: what is counted, what a subject's misbehaviour becomes, and what it leaves behind."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from nsa_doctor.core.measurement import GRADIENTS, MODES, OUTPUT, VALUES, Measurement, Point, to_json
from nsa_doctor.probes.hooks.memory import start_peak
from nsa_doctor.probes.model.inputs import make_input
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.probes.tensors.finite import census, holds_nonfinite
from nsa_doctor.subject.contract import Subject
from tests.nsa_doctor.conftest import is_marked

NAN, INF = float("nan"), float("inf")


def test_a_census_drops_nothing() -> None:
    values = torch.tensor([[[1.0, -3.0], [NAN, INF], [-INF, 2.0]]])
    counted = census("x", values)
    assert (counted.num_values, counted.num_nan, counted.num_inf, counted.largest) == (6, 1, 2, 3.0)
    assert (counted.num_rows, counted.num_bad_rows, counted.first_bad) == (3, 2, "token 1")


def test_a_census_of_nothing_finite_has_no_largest() -> None:
    assert census("x", torch.full((1, 2, 3), NAN)).largest == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_large_finite_values_are_finite(dtype: torch.dtype) -> None:
    largest = torch.full((64,), torch.finfo(dtype).max, dtype=dtype)
    assert not holds_nonfinite(largest)
    assert holds_nonfinite(torch.cat((largest, torch.tensor([NAN], dtype=dtype))))
    assert holds_nonfinite(torch.cat((largest, torch.tensor([INF], dtype=dtype), -largest)))


@pytest.mark.parametrize("mode", MODES)
def test_the_built_in_subject_is_counted_branch_by_branch(small: Subject, mode: str) -> None:
    measurement = LocalMeasurer(small).measure(Point(length=33, mode=mode))
    assert measurement.is_finite
    names = [counted.name for counted in measurement.censuses]
    assert names[:5] == ["compressed", "selected", "sliding", "gated", OUTPUT]
    assert (GRADIENTS in names) == (mode == "train")


def test_forward_only_takes_no_gradients(small: Subject) -> None:
    measurement = LocalMeasurer(small, Conditions(forward_only=True)).measure(Point(length=33))
    assert measurement.census(GRADIENTS) is None


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(small: Subject) -> None:
    def largest(seed: int) -> list[float]:
        measurement = LocalMeasurer(small, Conditions(seed=seed)).measure(Point(length=20))
        return [counted.largest for counted in measurement.censuses]

    assert largest(3) == largest(3) != largest(4)


@pytest.mark.parametrize("name", ["raises", "leaves", "interrupts_itself"])
def test_an_exception_is_a_trouble_with_its_line(faulty: Callable[..., LocalMeasurer], name: str) -> None:
    measurer = faulty(f"unruly:{name}")
    trouble = measurer.measure(Point(length=17)).trouble
    assert trouble is not None
    assert (trouble.kind, trouble.phase, trouble.place.module) == ("raised", "forward", "part")
    assert is_marked(trouble.place.file, trouble.place.line)
    assert measurer.measure(Point(length=16)).is_finite


@pytest.mark.parametrize("name", ["raises", "overwritten"])
def test_an_exception_in_backward_is_traced_to_the_module(faulty: Callable[..., LocalMeasurer], name: str) -> None:
    measurement = faulty(f"backward:{name}").measure(Point(length=16))
    trouble = measurement.trouble
    assert trouble is not None
    assert (trouble.kind, trouble.phase, trouble.place.module) == ("raised", "backward", "part")
    assert is_marked(trouble.place.file, trouble.place.line)
    assert not measurement.is_bad(OUTPUT)
    assert measurement.census(OUTPUT) is not None


def test_running_out_of_memory_is_a_trouble_of_its_own(faulty: Callable[..., LocalMeasurer]) -> None:
    trouble = faulty("unruly:out_of_memory").measure(Point(length=17)).trouble
    assert trouble is not None
    assert trouble.kind == "out_of_memory"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shorter", "forward returned float32 [1, 15, 16], expected a floating-point tensor [1, 16, 16]"),
        ("nothing", "forward returned NoneType, expected a floating-point tensor [1, 16, 64]"),
    ],
)
def test_a_wrong_output_is_reported_with_both_shapes(
    faulty: Callable[..., LocalMeasurer], name: str, message: str
) -> None:
    trouble = faulty(f"unruly:{name}").measure(Point(length=16)).trouble
    assert trouble is not None
    assert (trouble.kind, trouble.message, trouble.place.function) == ("wrong_shape", message, "forward")


def test_what_a_subject_does_to_the_process_is_undone_and_reported(faulty: Callable[..., LocalMeasurer]) -> None:
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    measurement = faulty("healthy:rude").measure(Point(length=16))
    assert "the subject changes the default dtype" in measurement.notes
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]


def test_a_default_device_that_a_subject_set_reaches_nothing_of_the_doctors(
    faulty: Callable[..., LocalMeasurer],
) -> None:
    measurement = faulty("healthy:moves_the_default").measure(Point(length=16))
    assert measurement.is_finite
    assert measurement.notes == ("the subject changes the default device",)


def test_an_exception_that_cannot_be_printed_is_reported_by_its_name(faulty: Callable[..., LocalMeasurer]) -> None:
    trouble = faulty("unruly:speechless").measure(Point(length=16)).trouble
    assert trouble is not None
    assert trouble.message.startswith("_SpeechlessError: ")
    assert is_marked(trouble.place.file, trouble.place.line)


def test_preserved_state_says_what_changed() -> None:
    with preserved_state() as changes:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
    assert changes.seen == ["default dtype", "grad mode"]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kind", ["embeddings", "tokens"])
def test_every_kind_of_input_is_valid(small: Subject, values: str, kind: str) -> None:
    subject = replace(small, input=kind)
    for length in (1, 2, 7, 200):
        x = make_input(subject, Point(length=length, values=values), 0, torch.device("cpu"))
        rows = {"repeated": 2 if length == 200 else 33, "huge_token": min(length, 3)}.get(values, 1)
        assert x.shape == ((rows, length, 32) if kind == "embeddings" else (rows, length))
        if values == "repeated":
            assert torch.equal(x[1:], x[1:, :1].expand_as(x[1:]))
        if values == "huge_token":
            sizes = x.abs().flatten(2).amax(-1) if kind == "embeddings" else x
            assert sizes.argmax(1).tolist() == [length // 2, 0, length - 1][:rows]
        assert torch.isfinite(x).all()
        if kind == "tokens":
            assert bool(((x >= 0) & (x < 32)).all())


def test_a_measurement_survives_json(small: Subject) -> None:
    measurement = LocalMeasurer(small).measure(Point(length=5))
    assert Measurement.from_json(to_json(measurement)) == measurement


def test_peak_memory_counts_what_a_region_held_for_a_while() -> None:
    peak = start_peak(torch.device("cpu"))
    held = torch.ones(16 << 20)  # 64 MiB
    del held
    measured = peak()
    if measured is None:
        pytest.skip("this kernel does not reset the high-water mark")
    assert 60 << 20 <= measured <= 90 << 20
