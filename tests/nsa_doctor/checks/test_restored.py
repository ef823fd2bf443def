"""A function that by its name undoes another is found where it does not; odd pairs are not."""

import linecache
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.probes.hooks.inverse_names import roles_of
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.restored import not_restored
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import inverse_pairs as pairs
from tests.nsa_doctor.checks import oddly_inverse_pairs as odd
from tests.nsa_doctor.small_subjects import small_subject


@pytest.mark.parametrize("name", pairs.FAULTY)
def test_what_is_not_given_back_is_found_at_its_line(name: str) -> None:
    make, words = pairs.FAULTY[name]
    result = run_check(registry.load("FWD271"), small_subject(make, width=pairs.DIM))
    assert result.verdict is Verdict.FAIL, result.reason
    (finding,) = result.findings
    assert words in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line), finding.where


@pytest.mark.parametrize("name", odd.HEALTHY)
def test_a_pair_that_gives_back_or_need_not_is_silent(name: str) -> None:
    result = run_check(registry.load("FWD271"), small_subject(odd.HEALTHY[name], width=pairs.DIM))
    assert result.verdict is Verdict.PASS, result.findings


def test_statistics_that_change_places_in_the_call_are_found() -> None:
    result = run_check(registry.load("FWD271"), small_subject(pairs.SwappedStatistics, width=pairs.DIM))
    assert [finding.evidence["second"] for finding in result.findings] == ["destandardize"]


@pytest.mark.parametrize("seed", range(4))
def test_another_seed_finds_the_same(seed: int) -> None:
    make, _ = pairs.FAULTY["weight-before-bias"]
    assert run_check(registry.load("FWD271"), small_subject(make, width=pairs.DIM, seed=seed)).findings


def test_weights_are_as_they_were_afterwards() -> None:
    kept: list[dict[str, Tensor]] = []

    class Kept(pairs.ByMode):
        def forward(self, x: Tensor) -> Tensor:
            kept.append({name: each.detach().clone() for name, each in self.named_parameters()})
            return super().forward(x)

    subject = small_subject(lambda: Kept(pairs.DividesFirst()), width=pairs.DIM)
    module = comparable_module(subject)
    assert list(not_restored(module, 24))
    module(module.input(24))
    assert all(torch.equal(kept[0][name], kept[-1][name]) for name in kept[0])


PAIRS = [
    *("split_heads merge_heads", "_split_heads _combine_heads", "window_partition window_reverse"),
    *("window_partition window_unpartition", "normalize denormalize", "normalise restore", "norm denorm"),
    *("normalize_x unnormalize_x", "patchify unpatchify", "pack unpack", "shift unshift", "to_heads from_heads"),
    *("transform inverse_transform", "shape unshape", "seq2img img2seq", "de_normalize normalize"),
    *("grid_partition grid_reverse", "splitHeads mergeHeads", "split_channels join_channels", "forward inverse"),
    *("standardize unstandardize", "partition_windows reverse_windows", "undo_windowing windowing"),
]
STRANGERS = [
    *("normalize_x denormalize_y", "split_heads merge_windows", "fold unfold", "code decode", "quantize dequantize"),
    *("forward reverse", "embed unembed", "split_heads split_windows", "norm norm", "tokens merge_tokens", "to from"),
    *(
        "scale rescale",
        "noise denoise",
        "encode decode",
        "window_partition reverse",
        "tach detach",
        "compress decompress",
    ),
]


def _belong(names: str) -> bool:
    first, second = (roles_of(name) for name in names.split())
    return any(replace(role, undoes=not role.undoes) in second for role in first)


@pytest.mark.parametrize("names", PAIRS)
def test_names_belong_together(names: str) -> None:
    assert _belong(names)


@pytest.mark.parametrize("names", STRANGERS)
def test_other_names_do_not(names: str) -> None:
    assert not _belong(names)
