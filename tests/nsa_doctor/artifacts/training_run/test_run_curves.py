"""Curves of training runs: healthy ones raise no alarm, faulty ones are reported once, by what is wrong."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa_doctor.artifacts.judging import judge, judged
from nsa_doctor.artifacts.training_run.record import Beat, Evaluation
from nsa_doctor.artifacts.training_run.trends import (
    Series,
    levels,
    noise,
    rank_correlation,
    series,
    timeline,
    travelled,
)
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.testing.training_runs import trained
from tests.nsa_doctor.artifacts.training_run.curves import FAULTY, GUESS, HEALTHY, Curves, subject

FAMILIES = ("TRN2", "TRN3", "TRN4", "TRN5")
ENTRIES = [entry for entry in registry.of_kind("run") if entry.manual.code.startswith(FAMILIES)]
SEEDS = st.integers(min_value=0, max_value=10**6)


def findings(run):
    results = judged(ENTRIES, run)
    assert [result.reason for result in results if result.verdict is Verdict.CRASH] == []
    return [finding for result in results for finding in result.findings]


def ends(run, code):
    return judge(registry.load(code), run)


@pytest.mark.parametrize("name", HEALTHY)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_a_healthy_run_raises_no_alarm(name, seed):
    assert [f"{each.code} {each.message}" for each in findings(subject(HEALTHY[name](Curves(seed=seed))))] == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_run_is_reported_first_by_what_is_wrong_with_it(name):
    code, make = FAULTY[name]
    found = findings(subject(make(Curves(seed=7))))
    assert code in (found[0].code, *found[0].also)
    assert len(found) == 1, [each.message for each in found]


def beats_of(losses, **columns):
    return [
        Beat(step=step, loss=loss, msg="step", **{name: values[step - 1] for name, values in columns.items()})
        for step, loss in enumerate(losses, start=1)
    ]


def a_run(**parts):
    return subject(Curves(seed=3, **parts))


def test_five_steps_at_the_floor_of_a_warmup_show_nothing():
    losses, rates = [5.7168, 5.73, 5.75, 5.74, 5.7614], [1e-7 * step for step in range(1, 6)]
    run = a_run().with_beats(beats_of(losses, learning_rate=rates))
    rises = ends(run, "TRN203")
    assert (rises.verdict, rises.is_required) == (Verdict.SKIP, False)
    assert rises.reason.startswith("the loss goes from 5.7168 to 5.7614 over 5 steps, whose rates add up to 1.5e-06")
    assert ends(run, "TRN301").verdict is Verdict.SKIP
    assert ends(run, "TRN202").verdict is Verdict.SKIP


def test_a_rate_of_the_first_step_of_a_long_warmup_is_due():
    train = {"lr": 2e-4, "warmup_steps": 2000, "steps": 50_000}
    run = a_run(steps=60, loss=[10.9] * 60, train=train)
    first = run.record.beats[0].learning_rate
    assert first == pytest.approx(1e-7)
    assert [ends(run, code).findings for code in ("TRN301", "TRN302")] == [(), ()]


def test_a_rate_that_stays_at_the_first_step_of_its_warmup_is_stuck():
    train = {"lr": 2e-4, "warmup_steps": 2000, "steps": 50_000}
    found = findings(
        a_run(steps=60, loss=[10.9 + 0.01 * math.sin(s) for s in range(60)], train=train, rate=[1e-7] * 60)
    )
    assert [each.code for each in found] == ["TRN301"]
    assert "TRN302" in found[0].also


def test_what_a_later_life_made_again_counts():
    beats = [*beats_of([5.0] * 50), Beat(step=20, msg="resumed from step_00000020"), *beats_of([1.0] * 60)[20:]]
    steps = timeline(replace(a_run().record, beats=tuple(beats)))
    assert [beat.step for beat in steps] == list(range(1, 61))
    assert [beat.loss for beat in steps[18:22]] == [5.0, 5.0, 1.0, 1.0]


def test_a_stray_line_takes_nothing_back():
    beats = [*beats_of([5.0] * 50), Beat(step=3, loss=4.0), *beats_of([5.0] * 60)[50:]]
    assert len(timeline(replace(a_run().record, beats=tuple(beats)))) == 60


def test_a_step_not_finite_that_a_later_life_came_past_is_a_note():
    beats = [*beats_of([5.0] * 9), *beats_of([math.nan] * 10)[9:], *beats_of([4.0] * 30)[8:]]
    end = ends(a_run().with_beats(beats), "TRN201")
    assert (end.verdict, len(end.notes)) == (Verdict.PASS, 1)


def test_steps_left_out_are_reported_once_with_their_count():
    losses = [math.nan if step in (30, 50, 70) else 5.0 for step in range(1, 101)]
    run = a_run(train={"on_nonfinite": "skip"}).with_beats(beats_of(losses))
    (finding,) = ends(run, "TRN201").findings
    assert finding.message == "the loss is nan at step 30 and was left out, as 2 more of 100 steps"


def test_overflows_of_a_float16_scaler_are_a_note_and_those_of_bfloat16_are_not():
    gradients = [math.inf if step in (1, 2, 60) else 1.0 for step in range(1, 101)]
    run = a_run().with_beats(beats_of([5.0] * 100, grad_norm=gradients))
    half = replace(run, record=replace(run.record, environment={"dtype": "float16"}))
    assert ends(half, "TRN201").verdict is Verdict.PASS
    brain = replace(run, record=replace(run.record, environment={"dtype": "bfloat16"}))
    assert ends(brain, "TRN201").verdict is Verdict.FAIL


def test_the_module_that_a_tracer_names_is_where_the_finding_is():
    sentence = "NaN is born in blocks.1.attention (NSAttention), sqrt at nsa/nn/attention.py:77, in the forward pass: x"
    beats = [*beats_of([5.0] * 9), Beat(step=10, loss=math.nan, msg="not finite: the loss is nan at step 10; …")]
    run = a_run().with_beats(beats)
    facts = {"step": 10, "traced": sentence}
    (finding,) = ends(replace(run, record=replace(run.record, nonfinite=(facts,))), "TRN201").findings
    assert (finding.where.module, finding.where.line) == ("blocks.1.attention", 77)
    assert sentence in finding.message


def test_a_loss_too_low_for_text_is_forgiven_where_it_was_learnt_by_heart():
    losses = [max(0.3, 5.5 - 0.05 * step) for step in range(200)]
    run = a_run(steps=200, loss=losses, data="fineweb")
    assert ends(run, "TRN204").verdict is Verdict.FAIL
    held_out = (Evaluation(step=100, loss=2.4), Evaluation(step=200, loss=3.0))
    assert ends(replace(run, record=replace(run.record, evaluations=held_out)), "TRN204").verdict is Verdict.PASS


def test_without_an_entropy_how_low_a_loss_may_be_is_open():
    end = ends(
        a_run(steps=200, loss=[max(0.01, 5.5 - 0.05 * step) for step in range(200)], data="text:a.txt"), "TRN204"
    )
    assert (end.verdict, end.is_required) == (Verdict.SKIP, False)


def test_memory_of_report_003_grows():
    (finding,) = ends(a_run(steps=60, memory=[(69 + 101 * step / 59) * 1e6 for step in range(60)]), "TRN402").findings
    assert finding.evidence["bytes_per_step"] == pytest.approx(101e6 / 59, rel=1e-3)


def test_a_pace_that_a_neighbour_halves_is_no_decay():
    assert not ends(a_run(pace=[20_000.0] * 150 + [9_000.0] * 250), "TRN401").findings


def test_a_loss_of_exactly_a_guess_is_reported_without_a_vocabulary_only_where_no_trained_model_is():
    for level, is_reported in ((10.82, True), (2.3, False)):
        losses = [level + 0.02 * math.sin(7.0 * step) for step in range(300)]
        assert bool(ends(a_run(steps=300, loss=losses, is_foreign=True), "TRN202").findings) is is_reported


@pytest.mark.full
def test_a_turned_sign_is_one_finding():
    run = registry.load("TRN203").planted(a_run())
    assert [each.code for each in findings(run)] == ["TRN203"]


def test_targets_that_equal_inputs_are_one_finding():
    assert [
        each.code for each in findings(trained(steps=60, seams={"nsa.train.objective.next_tokens": _unshifted}))
    ] == ["TRN204"]


def _unshifted(tokens, documents):
    return tokens[:, :-1]


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=60), st.floats(-1e3, 1e3))
def test_a_level_and_a_slope_add_no_noise(values, slope):
    tilted = [100.0 + slope * index for index in range(len(values))]
    assert noise(tilted) <= 1e-6 * (1 + abs(slope))
    assert noise(values) >= 0
    assert -1 <= rank_correlation(values) <= 1


NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, 1.0, 1e308, -1e308, 5e-324])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-3, 200), *[NUMBERS] * 6), max_size=60), st.booleans())
def test_absurd_numbers_break_no_check(rows, is_own):
    names = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "memory", "ts")
    beats = [Beat(step=step, **dict(zip(names, values, strict=True))) for step, *values in rows]
    run = a_run().with_beats(beats)
    findings(replace(run, record=replace(run.record, is_own=is_own)))


@given(st.integers(1, 300), st.integers(1, 20))
def test_stretches_cover_every_point_once(count, wanted):
    of = Series(tuple(range(count)), tuple(float(step) for step in range(count)))
    found = levels(of, wanted)
    assert sum((each.values for each in found.stretches), ()) == of.values
    assert len(found.stretches) <= wanted


def test_a_line_every_so_many_steps_stands_for_the_rates_between():
    beats = [Beat(step=step, loss=1.0, learning_rate=2.0) for step in (1, 11, 21)]
    assert travelled(beats) == 42
    assert travelled([Beat(step=1, loss=1.0)]) is None


def test_a_series_keeps_what_is_finite():
    beats = beats_of([1.0, math.nan, 3.0])
    assert series(beats, "loss") == Series((1, 3), (1.0, 3.0))
    assert pytest.approx(5.545, abs=1e-3) == GUESS
