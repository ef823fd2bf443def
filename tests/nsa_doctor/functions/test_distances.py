"""ALiBi distances are counted within each sequence and each row of a cache, also where some keys belong to none."""

from dataclasses import replace

import pytest

from nsa_doctor.probes.functions.oracle import distances
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.shapes import base, of_length
from tests.nsa_doctor.functions.examined import subject_of
from tests.nsa_doctor.functions.healthy import flash, varlen


def test_each_sequence_has_its_own_last_key() -> None:
    subject = subject_of(varlen, "flash_varlen", "causal")
    shape = replace(base(subject), queries=3, keys=8, parts=((2, 4), (1, 3)))
    found = distances(problem_of(subject, shape))[0, 0]
    assert found[:2, :4].tolist() == [[2, 1, 0, 1], [3, 2, 1, 0]]
    assert found[2, 4:7].tolist() == [2, 1, 0]
    assert found.shape == (3, 8)


def test_queries_count_back_from_the_last_key() -> None:
    subject = subject_of(flash, "flash", "causal")
    found = distances(problem_of(subject, of_length(subject, base(subject), 2, 4)))[0, 0]
    assert found.tolist() == [[2, 1, 0, 1], [3, 2, 1, 0]]


@pytest.mark.parametrize("queries", [1, 2, 3, 5, 33])
@pytest.mark.parametrize("keys", [1, 2, 12, 17, 65])
def test_sequences_hold_every_query_and_every_key(queries: int, keys: int) -> None:
    subject = subject_of(varlen, "flash_varlen", "causal")
    parts = of_length(subject, base(subject), queries, keys).parts
    assert tuple(map(sum, zip(*parts, strict=True))) == (queries, keys)
    assert min(map(min, parts)) >= 1
