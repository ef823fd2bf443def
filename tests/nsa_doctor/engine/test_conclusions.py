"""What a sweep could not measure leaves its checks skipped, but for one token in a norm of batches."""

from nsa_doctor.core.finding import Verdict
from nsa_doctor.core.measurement import Measurement, Point, Trouble
from nsa_doctor.engine.conclusions import swept_results
from nsa_doctor.engine.measure_points import Examination

ONE, MANY = Point(length=1), Point(length=16)
OF_ONE_VALUE = "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 8])"


def _verdicts(*measurements: Measurement) -> set[Verdict]:
    examination = Examination(measurements=list(measurements))
    return {result.verdict for result in swept_results((), examination, (ONE, MANY), lambda _entry: True)}


def _not_measured(point: Point, message: str) -> Measurement:
    return Measurement(point=point, trouble=Trouble(kind="not_measured", message=message))


def test_one_token_in_a_norm_of_batches_is_nothing_that_is_missing() -> None:
    assert _verdicts(_not_measured(ONE, OF_ONE_VALUE), Measurement(point=MANY)) == {Verdict.PASS}


def test_what_was_given_up_is_missing() -> None:
    assert _verdicts(_not_measured(ONE, "given up"), Measurement(point=MANY)) == {Verdict.SKIP}


def test_where_nothing_was_measured_nothing_passes() -> None:
    assert _verdicts(_not_measured(ONE, OF_ONE_VALUE), _not_measured(MANY, OF_ONE_VALUE)) == {Verdict.SKIP}
