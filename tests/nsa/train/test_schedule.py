"""The learning rate goes up to its peak, then down to its floor, whatever the numbers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsa.config import TrainConfig
from nsa.train.schedule import learning_rate


@st.composite
def schedules(draw, kinds=("cosine", "constant")):
    steps = draw(st.integers(1, 300))
    lr = draw(st.floats(1e-8, 10.0))
    kind = draw(st.sampled_from(kinds))
    floor = draw(st.floats(0, 1)) * lr if kind == "cosine" else 0.0
    return TrainConfig(steps=steps, lr=lr, lr_schedule=kind, lr_floor=floor, warmup_steps=draw(st.integers(0, steps)))


def rates(train):
    return [learning_rate(step, train) for step in range(1, train.steps + 1)]


@given(schedules())
def test_it_reaches_its_peak_and_never_passes_it(train):
    found = rates(train)
    assert max(found) == train.lr
    assert found.index(train.lr) == max(train.warmup_steps, 1) - 1


@given(schedules())
def test_it_is_never_negative_nor_not_finite(train):
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates(train))


@given(schedules())
def test_it_has_no_flat_start(train):
    found = rates(train)[: max(train.warmup_steps, 1)]
    assert found[0] > 0
    assert all(after > before for before, after in itertools.pairwise(found))


@given(schedules())
def test_it_never_rises_after_the_warm_up(train):
    found = rates(train)[max(train.warmup_steps, 1) - 1 :]
    assert all(after <= before for before, after in itertools.pairwise(found))


@given(schedules(kinds=["cosine"]))
def test_a_cosine_ends_at_its_floor_and_never_goes_below(train):
    found = rates(train)
    if train.steps > max(train.warmup_steps, 1):
        assert found[-1] == pytest.approx(train.lr_floor, abs=1e-12 * train.lr)
    assert all(rate >= train.lr_floor * (1 - 1e-12) for rate in found[max(train.warmup_steps, 1) - 1 :])


@given(schedules(kinds=["constant"]))
def test_a_constant_stays_at_its_peak(train):
    assert set(rates(train)[max(train.warmup_steps, 1) - 1 :]) == {train.lr}


def test_the_first_step_of_a_long_warm_up_is_as_reported():
    assert learning_rate(1, TrainConfig(lr=2e-4, steps=50_000, warmup_steps=2000)) == pytest.approx(1e-7)


def test_half_way_down_a_cosine_is_half_way_between():
    assert learning_rate(51, TrainConfig(lr=1.0, lr_floor=0.5, steps=101)) == pytest.approx(0.75)


def test_a_warm_up_that_outlasts_the_run_goes_on_rising():
    found = rates(TrainConfig(steps=5, lr=1.0, warmup_steps=20))
    assert found == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])
