"""Counted work as time: more for more work, and the same whatever else the machine does."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from nsa_doctor.probes.model.nominal_time import nominal_seconds


def test_counted_work_is_the_same_each_time():
    x = torch.randn(1, 2, 100, 16)
    attend = lambda: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)  # noqa: E731
    assert nominal_seconds(attend) == nominal_seconds(attend)


def test_a_product_costs_its_multiplications_and_a_loop_its_operations():
    small, large = torch.randn(64, 64), torch.randn(512, 512)
    assert nominal_seconds(lambda: large @ large) > 50 * nominal_seconds(lambda: small @ small)
    assert nominal_seconds(lambda: [small + 1 for _ in range(100)]) > 90 * nominal_seconds(lambda: small + 1)


def test_attention_in_one_operation_costs_more_than_its_memory():
    short, long = torch.randn(1, 1, 64, 16), torch.randn(1, 1, 2048, 16)
    attend = nn.functional.scaled_dot_product_attention
    assert nominal_seconds(lambda: attend(long, long, long)) > 100 * nominal_seconds(
        lambda: attend(short, short, short)
    )


def test_a_view_costs_no_memory():
    x = torch.randn(1000, 1000)
    assert nominal_seconds(lambda: x.mT) < nominal_seconds(lambda: x + 1) / 10


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_costs_what_it_runs():
    x, y = torch.randn(1, 1, 16, 16), torch.randn(1, 1, 256, 16)
    with torch.no_grad():
        assert 0 < nominal_seconds(lambda: flex_attention(x, x, x)) < nominal_seconds(lambda: flex_attention(y, y, y))
