"""What does not depend on the input is compared with what the same lines made in one pass over all tokens."""

import torch

from nsa_doctor.probes.tensors.known_constants import KnownConstants
from nsa_doctor.probes.tensors.known_rows import Asked

HERE, THERE = (("model.py", 7),), (("model.py", 9),)
LENGTH = 12


def _known() -> KnownConstants:
    known = KnownConstants(LENGTH)
    known.learn(torch.arange(LENGTH), "arange", HERE)
    known.learn(torch.arange(LENGTH // 3), "arange", THERE)
    return known


def test_positions_of_a_token_are_in_place_and_those_of_another_elsewhere() -> None:
    asked = Asked("arange", 5, 1)
    assert _known().standing(torch.tensor([5]), asked, HERE) == "in place"
    assert _known().standing(torch.tensor([4]), asked, HERE) == "elsewhere"
    assert _known().standing(torch.arange(6), asked, HERE) == "in place"


def test_what_other_lines_made_is_not_compared_with() -> None:
    assert _known().standing(torch.tensor([1]), Asked("arange", 5, 1), THERE) == "unknown"
    assert _known().standing(torch.arange(LENGTH // 3), Asked("arange", 5, 1), THERE) == "alike"


def test_numbers_of_blocks_that_an_earlier_step_had_are_seen() -> None:
    known, first = _known(), torch.tensor([0])
    assert known.is_again(torch.tensor([0]), "arange", THERE, first)
    assert not known.is_again(torch.tensor([1]), "arange", THERE, first)
    assert not known.is_again(torch.tensor([77]), "arange", THERE, torch.tensor([77]))


def test_a_mask_without_hidden_keys_shows_that_keys_are_missing() -> None:
    known, at = KnownConstants(LENGTH), torch.arange(LENGTH)
    known.learn((at[:, None] >= at) & (at[:, None] - at < 5), "bitwise_and", HERE)
    asked = Asked("bitwise_and", 8, 1)
    assert known.shows_more(torch.ones(1, 4, dtype=torch.bool), asked, HERE)
    assert not known.shows_more(torch.ones(1, 5, dtype=torch.bool), asked, HERE)
    assert not known.shows_more(torch.zeros(1, 4, dtype=torch.bool), asked, HERE)
