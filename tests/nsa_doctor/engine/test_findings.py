"""One cause is one finding, named after what it depends on, with the control that stood beside it."""

import time
from collections.abc import Callable, Sequence

import pytest

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Census, Diagnosis, Measurement, Point
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.engine.describe import findings
from nsa_doctor.engine.measure_points import Examination, examine, points
from nsa_doctor.probes.numerics.local import LocalMeasurer
from tests.nsa_doctor.conftest import is_marked


def examined(measurer: LocalMeasurer, to_measure: Sequence[Point]) -> list[Finding]:
    examination = Examination()
    examine(measurer, examination, to_measure)
    return findings(examination, CommandLine(options=measurer.subject.options, seed=0))


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def test_many_lengths_modes_and_dtypes_are_one_finding(faulty: Callable[..., LocalMeasurer]) -> None:
    measurer = faulty("forward:empty_row")
    found = only(examined(measurer, points([15, 16, 32, 64], dtypes=("float32", "bfloat16"))))
    assert found.code == "NAN101"
    assert found.evidence["lengths"] == "16,64"
    assert found.evidence["modes"] == "train,eval,no_grad"
    assert found.evidence["dtypes"] == "bfloat16,float32"
    assert found.message.startswith(
        "1 of 16 rows of the output is not finite at S=16 and 64 in bfloat16 and float32 (train, eval, no_grad): "
        "16 NaN, first in token 3; the first NaN comes from softmax (forward)"
    )
    assert found.repro == "nsa-doctor sweep --seq 16 --subject faulty.forward:empty_row --input embeddings --seed 0"


def test_the_neighbours_are_measured_as_a_control(faulty: Callable[..., LocalMeasurer]) -> None:
    assert only(examined(faulty("forward:empty_row"), points([64]))).control == "finite at S=63 and 65"


@pytest.mark.parametrize(
    ("name", "to_measure", "code", "control"),
    [
        ("forward:log_of_zero", points([16]), "NAN101", ""),
        ("backward:masked_root", points([16]), "NAN102", ""),
        ("forward:only_in_training", points([16]), "NAN103", "finite in eval and no_grad"),
        ("forward:only_on_large", points([16], values=("normal", "large")), "NAN104", "finite on normal input"),
        (
            "forward:on_a_repeated_token",
            points([128], values=("normal", "repeated")),
            "NAN104",
            "finite on normal input",
        ),
        ("forward:only_in_half", points([16], dtypes=("float32", "float16")), "NAN105", "finite in float32"),
        ("unruly:raises", points([17]), "FWD101", "returns at S=16 and 18"),
        ("unruly:shorter", points([17]), "FWD102", ""),
    ],
)
def test_a_finding_is_named_after_what_it_depends_on(
    faulty: Callable[..., LocalMeasurer], name: str, to_measure: list[Point], code: str, control: str
) -> None:
    found = only(examined(faulty(name), to_measure))
    assert (found.code, found.control) == (code, control)


def test_what_is_returned_beside_the_output_counts(faulty: Callable[..., LocalMeasurer]) -> None:
    found = only(examined(faulty("unusual:faulty_beside"), points([16, 20])))
    assert (found.code, found.evidence["target"]) == ("NAN101", "other outputs")
    assert "first in ['inner'][0]['loss']" in found.message
    assert is_marked(found.where.file, found.where.line)


def test_a_line_used_by_two_modules_is_one_finding_that_names_the_first(faulty: Callable[..., LocalMeasurer]) -> None:
    found = only(examined(faulty("forward:parallel"), points([16])))
    assert found.where.module == "parts.0"


@pytest.mark.parametrize("name", ["masked", "causal", "token_model", "no_parameters", "rude", "frozen"])
def test_what_is_odd_but_right_raises_no_alarm(faulty: Callable[..., LocalMeasurer], name: str) -> None:
    assert examined(faulty(f"healthy:{name}"), points([1, 2, 16, 17], dtypes=("float32", "bfloat16"))) == []


@pytest.mark.parametrize("name", ["two_bugs", "two_in_a_row"])
def test_every_finding_has_a_place_when_two_bugs_meet_at_many_points(
    faulty: Callable[..., LocalMeasurer], name: str
) -> None:
    found = examined(faulty(f"forward:{name}"), points([16, 20, 24, 28, 32]))
    assert len(found) == 2
    assert all(is_marked(finding.where.file, finding.where.line) for finding in found)
    assert {finding.evidence["lengths"] for finding in found} == {"16,20,24,28,32"}


def test_what_grew_at_one_line_and_overflows_at_two_is_one_finding_there(
    faulty: Callable[..., LocalMeasurer],
) -> None:
    found = only(examined(faulty("forward:two_overflows_of_one_growth"), points([16, 20])))
    assert is_marked(found.where.file, found.where.line)
    assert "values at an end of the dtype's range come from exp" in str(found.evidence["detail"])
    assert found.evidence["grown_at"] == f"forward.py:{found.where.line}"


def test_what_grew_at_two_lines_is_two_findings(faulty: Callable[..., LocalMeasurer]) -> None:
    found = examined(faulty("forward:two_overflows_of_two_growths"), points([16, 20]))
    assert len(found) == 2
    assert len({finding.evidence["grown_at"] for finding in found}) == 2


class Untraceable:
    """A supervisor whose tracing comes back with nothing."""

    def measure(self, point: Point) -> Measurement:
        bad = Census(
            name="output",
            num_values=4,
            num_nan=1,
            num_inf=0,
            largest=1.0,
            num_rows=2,
            num_bad_rows=1,
            first_bad="token 1",
        )
        return Measurement(point=point, censuses=(bad,))

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        return Diagnosis(point=point, target="output", reason="the traced pass was finite")


def test_where_tracing_shows_nothing_no_cause_is_claimed() -> None:
    examination = Examination()
    examine(Untraceable(), examination, points([8, 9]))
    found = only(findings(examination, CommandLine()))
    assert found.message.endswith("where that begins is not known: the traced pass was finite")
    assert found.where.module_text == found.where.line_text == ""


class Slow(Untraceable):
    """A supervisor each of whose traces is long."""

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        return Diagnosis(point=point, target="output", reason="the traced pass was finite", num_operations=200_000)


def test_fewer_points_are_traced_where_passes_are_long() -> None:
    quick, slow = Examination(), Examination()
    examine(Untraceable(), quick, points([8, 9, 10, 11]))
    examine(Slow(), slow, points([8, 9, 10, 11]))
    assert len(quick.diagnoses) == 8
    assert len(slow.diagnoses) == 2


class Sleeping(Untraceable):
    """A supervisor each of whose traces takes a while."""

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        time.sleep(0.05)
        return super().diagnose(point, raises)


def test_after_the_seconds_of_tracing_no_further_point_is_traced() -> None:
    all_of_them, first = Examination(), Examination()
    examine(Sleeping(), all_of_them, points([8, 9, 10, 11]))
    examine(Sleeping(), first, points([8, 9, 10, 11]), tracing_seconds=0.02)
    assert (len(all_of_them.diagnoses), len(first.diagnoses)) == (8, 1)
