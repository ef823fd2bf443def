"""The doctor names the module, the line and the operation where a non-finite value was born."""

from collections.abc import Callable

import pytest

from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Diagnosis, NonfiniteOrigin, Point
from nsa_doctor.probes.numerics import nonfinite_origin
from nsa_doctor.probes.numerics.local import LocalMeasurer
from tests.nsa_doctor.conftest import is_marked

FORWARD = [  # name, operation, module, value
    ("empty_row", "softmax", "part", "NaN"),
    ("overflow", "exp", "part", "inf"),
    ("log_of_zero", "log", "part", "inf"),
    ("zero_divisor", "div", "part", "NaN"),
    ("infinity_times_zero", "mul", "part", "NaN"),
    ("mask_minus_mask", "sub", "part", "NaN"),
    ("in_place", "div", "part", "NaN"),
    ("indexed_write", "rsqrt", "part", "inf"),
    ("half_overflow", "to_copy", "part", "inf"),
    ("dropped_and_kept", "log", "part", "inf"),
    ("constant", "tensor constant", "part", "NaN"),
    ("fused_attention", "mul", "part", "inf"),
    ("through_numpy", "write outside torch", "part", "NaN"),
    ("fused_norm", "native_layer_norm", "part.norm", "NaN"),
    ("called_directly", "native_layer_norm", "inner.part.norm", "NaN"),
    ("faulty_buffer", "log", "part", "inf"),
    ("faulty_parameter", "full", "part", "NaN"),
    ("only_in_training", "rsqrt", "part", "inf"),
    ("two_layers", "rsqrt", "0.part", "inf"),
]
BACKWARD = [
    ("masked_root", "div in SqrtBackward0", "backward"),
    ("masked_negative_root", "sqrt", "forward"),
    ("norm_at_zero", "div in SqrtBackward0", "backward"),
    ("power", "pow in PowBackward0", "backward"),
    ("recomputed", "div in SqrtBackward0", "backward"),
    ("custom", "div in _DoubledBackward", "backward"),
]


def only_birth(diagnosis: Diagnosis) -> NonfiniteOrigin:
    assert len(diagnosis.origins) == 1, diagnosis
    return diagnosis.origins[0]


@pytest.mark.parametrize(("name", "operation", "module", "value"), FORWARD, ids=[case[0] for case in FORWARD])
def test_a_birth_in_the_forward_pass_is_named(
    faulty: Callable[[str], LocalMeasurer], name: str, operation: str, module: str, value: str
) -> None:
    measurer = faulty(f"forward:{name}")
    assert measurer.measure(Point(length=16)).is_bad(OUTPUT)
    diagnosis = measurer.diagnose(Point(length=16))
    origin = only_birth(diagnosis)
    assert (diagnosis.target, origin.operation, origin.place.module, origin.value) == (OUTPUT, operation, module, value)
    assert is_marked(origin.place.file, origin.place.line)


@pytest.mark.parametrize(("name", "operation", "phase"), BACKWARD, ids=[case[0] for case in BACKWARD])
def test_a_birth_behind_a_finite_output_is_named(
    faulty: Callable[[str], LocalMeasurer], name: str, operation: str, phase: str
) -> None:
    measurer = faulty(f"backward:{name}")
    measurement = measurer.measure(Point(length=16))
    assert not measurement.is_bad(OUTPUT)
    assert measurement.is_bad(GRADIENTS)
    diagnosis = measurer.diagnose(Point(length=16))
    origin = only_birth(diagnosis)
    assert (diagnosis.target, origin.operation, origin.phase, origin.place.module) == (
        GRADIENTS,
        operation,
        phase,
        "part",
    )
    assert is_marked(origin.place.file, origin.place.line)


def test_unwritten_memory_is_named_even_when_it_happens_to_hold_zeros(faulty: Callable[[str], LocalMeasurer]) -> None:
    origin = only_birth(faulty("forward:unwritten").diagnose(Point(length=16)))
    assert origin.operation == "empty_like"
    assert is_marked(origin.place.file, origin.place.line)


def test_two_bugs_give_two_births(faulty: Callable[[str], LocalMeasurer]) -> None:
    origins = faulty("forward:two_bugs").diagnose(Point(length=16)).origins
    assert [origin.operation for origin in origins] == ["div", "log"]
    assert all(is_marked(origin.place.file, origin.place.line) for origin in origins)


def test_a_bug_downstream_of_another_is_found_too(faulty: Callable[[str], LocalMeasurer]) -> None:
    origins = faulty("forward:two_in_a_row").diagnose(Point(length=16)).origins
    assert [origin.operation for origin in origins] == ["div", "div"]
    assert len({origin.place.line for origin in origins}) == 2
    assert all(is_marked(origin.place.file, origin.place.line) for origin in origins)


def test_fewer_causes_are_tried_where_a_pass_is_long(
    faulty: Callable[[str], LocalMeasurer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonfinite_origin, "_MOST_OPERATIONS", 1)
    assert len(faulty("forward:two_in_a_row").diagnose(Point(length=16)).origins) == 1


@pytest.mark.parametrize("name", ["forward:empty_row", "healthy:masked"])
def test_the_operations_that_were_watched_are_counted(faulty: Callable[[str], LocalMeasurer], name: str) -> None:
    assert faulty(name).diagnose(Point(length=16)).num_operations > 0


def test_what_only_the_cure_brings_about_is_no_birth(faulty: Callable[[str], LocalMeasurer]) -> None:
    assert only_birth(faulty("forward:overflow_of_whole_rows").diagnose(Point(length=16))).operation == "exp"


def test_one_infinity_behind_two_nans_gives_one_birth(faulty: Callable[[str], LocalMeasurer]) -> None:
    assert only_birth(faulty("forward:one_infinity_two_nans").diagnose(Point(length=16))).operation == "exp"


def test_the_mask_that_fed_an_empty_softmax_is_reported(faulty: Callable[[str], LocalMeasurer]) -> None:
    origin = only_birth(faulty("forward:empty_row").diagnose(Point(length=16)))
    assert origin.detail.startswith("its input held inf from masked_fill at ")


def test_a_buffer_that_carries_the_value_is_reported(faulty: Callable[[str], LocalMeasurer]) -> None:
    origin = only_birth(faulty("forward:faulty_buffer").diagnose(Point(length=16)))
    assert (origin.phase, origin.detail) == ("build", origin.detail)
    assert "it came in through buffer part.decay" in origin.detail


def test_nothing_is_found_in_a_healthy_module(faulty: Callable[[str], LocalMeasurer]) -> None:
    measurer = faulty("healthy:masked")
    assert measurer.measure(Point(length=16)).is_finite
    assert measurer.diagnose(Point(length=16)).origins == ()


def test_tracing_repeats_what_was_measured(faulty: Callable[[str], LocalMeasurer]) -> None:
    measurer = faulty("forward:empty_row")
    before = measurer.measure(Point(length=16))
    measurer.diagnose(Point(length=16))
    after = measurer.measure(Point(length=16))
    assert before.censuses == after.censuses
