"""Projections that play another role than their names say are found; every usual design is silent."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.attention.projection_names import named_projections, role_of
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import usual_attention
from tests.nsa_doctor.checks.usual_attention import (
    WIDTH,
    Absorbed,
    Additive,
    Attention,
    ByTorch,
    Convolved,
    Disentangled,
    FromTheFirst,
    Fused,
    Grouped,
    Latents,
    Layers,
    Memory,
    Mixing,
    Motion,
    OfCritic,
    OfOneBase,
    OfOneKey,
    OfWeights,
    Shortened,
    TalkingHeads,
    as_plain_slots,
    as_slots,
    attended,
    both_ways,
    by_einsum,
    by_torch,
    featured,
    in_pieces,
    linear,
    of_channels,
    of_differences,
    retained,
    rotated,
    swapped,
    transposed,
    transposed_by_einsum,
)
from tests.nsa_doctor.small_subjects import small_subject


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD263"), small_subject(make, width=WIDTH))


FAULTY = {
    "keys for values": (
        lambda: Attention(swapped(attended, "qvk")),
        ("k_proj is weighed as values", "v_proj is scored as keys"),
    ),
    "queries for keys": (
        lambda: Attention(swapped(attended, "kqv")),
        ("q_proj is scored as keys", "k_proj asks as queries"),
    ),
    "all three": (
        lambda: Attention(swapped(attended, "vqk")),
        ("q_proj is scored as keys", "k_proj is weighed as values", "v_proj asks as queries"),
    ),
    "by torch": (lambda: Attention(swapped(by_torch, "qvk")), ("k_proj is weighed as values",)),
    "by einsum": (lambda: Attention(swapped(by_einsum, "kqv")), ("k_proj asks as queries",)),
    "transposed": (lambda: Attention(swapped(transposed, "kqv")), ("k_proj asks as queries",)),
    "rotated": (lambda: Attention(swapped(rotated, "qvk")), ("k_proj is weighed as values",)),
    "in pieces": (lambda: Attention(swapped(in_pieces, "vkq")), ("q_proj is weighed as values",)),
    "grouped": (lambda: Grouped(swapped(attended, "qvk")), ("k_proj is weighed as values",)),
    "other names": (lambda: Attention(swapped(attended, "qvk"), ("to_q", "linearK", "Wv")), ("linearK is weighed",)),
    "weights": (lambda: OfWeights("qvk"), ("W_k is weighed as values", "W_v is scored as keys")),
    "convolutions": (lambda: Convolved("kqv"), ("query_conv is scored as keys",)),
    "torch's module": (lambda: ByTorch("qvk"), ("to_k is weighed as values", "to_v is scored as keys")),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), FAULTY.values(), ids=FAULTY.keys())
def test_another_role_is_found(make: Callable[[], nn.Module], said: tuple[str, ...]) -> None:
    (finding,) = examined(lambda: Layers(make)).findings
    assert finding.message.startswith("in the attention of layers.0 the projection named ")
    assert all(each in finding.message for each in said)
    assert finding.where.file == usual_attention.__file__
    assert finding.where.module == "layers.0"


def test_the_line_is_that_of_the_product() -> None:
    (finding,) = examined(lambda: Attention(swapped(attended, "qvk"))).findings
    assert finding.where.line == attended.__code__.co_firstlineno + 2


CLEAR = {
    "plain": lambda: Attention(attended),
    "by torch": lambda: Attention(by_torch),
    "by einsum": lambda: Attention(by_einsum),
    "transposed": lambda: Attention(transposed),
    "transposed by einsum": lambda: Attention(transposed_by_einsum),
    "rotated": lambda: Attention(rotated),
    "in pieces": lambda: Attention(in_pieces),
    "grouped": lambda: Grouped(attended),
    "weights": lambda: OfWeights("qkv"),
    "convolutions": lambda: Convolved("qkv"),
    "torch's module": lambda: ByTorch("qkv"),
    "latents": Latents,
    "disentangled": Disentangled,
    "critic": OfCritic,
    "talking heads": TalkingHeads,
    "values of the first": FromTheFirst,
}


@pytest.mark.parametrize("make", CLEAR.values(), ids=CLEAR.keys())
def test_projections_in_their_roles_pass(make: Callable[[], nn.Module]) -> None:
    assert examined(lambda: Layers(make)).verdict is Verdict.PASS


UNCLEAR = {
    "linear": lambda: Attention(linear),
    "features": lambda: Attention(featured),
    "retention": lambda: Attention(retained),
    "channels": lambda: Attention(of_channels),
    "slots": lambda: Attention(as_slots),
    "plain slots": lambda: Attention(as_plain_slots),
    "both ways": lambda: Attention(both_ways),
    "differences": lambda: Attention(of_differences),
    "linear, swapped": lambda: Attention(swapped(linear, "vqk")),
    "absorbed": Absorbed,
    "one base": OfOneBase,
    "one key": OfOneKey,
    "fused": Fused,
    "mixing": Mixing,
    "memory": Memory,
    "motion": Motion,
    "additive": Additive,
    "shortened": Shortened,
}


@pytest.mark.parametrize("make", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_what_has_no_such_roles_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(lambda: Layers(make))
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((name, "query") for name in ("q", "q_proj", "to_q", "query", "wq", "W_q", "linear_q", "in_proj_q", "qproj")),
        *((name, "key") for name in ("k_proj", "key", "linearK", "key_conv", "keys", "fc_k", "k_up")),
        *((name, "value") for name in ("v", "v_proj", "value", "valueLayer", "Wv", "v_proj_weight")),
        *((name, None) for name in ("qkv", "kv_proj", "key_value", "pos_key_proj", "in_proj_weight", "vocab", "qk")),
    ],
)
def test_a_name_says_one_role_or_none(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_what_is_adapted_is_one_projection() -> None:
    module = nn.ModuleDict({"q_proj": nn.ModuleDict({"base_layer": nn.Linear(2, 2), "lora_A": nn.Linear(2, 1)})})
    module.update({"k_proj": nn.Linear(2, 2), "v_proj": nn.Linear(2, 2)})
    (found,) = named_projections(nn.ModuleDict({"attn": module}))
    assert (found.holder, found.names["query"], len(found.memory)) == ("attn", ("q_proj",), 8)


class Twice(nn.Module):
    """One attention under two names."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = make()
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize(("order", "num_findings"), [("qkv", 0), ("qvk", 1)])
def test_an_attention_under_two_names_is_examined(order: str, num_findings: int) -> None:
    result = examined(lambda: Twice(lambda: Attention(swapped(attended, order))))
    assert len(result.findings) == num_findings, result.reason
