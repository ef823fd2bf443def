"""The operator that a compiler sees of the branches: sound by torch's own checks, with the bits of eager calls."""

import json
import subprocess
import sys
from functools import cache

import pytest
import torch
from torch import Tensor

import nsa.ops.traced  # noqa: F401 (registers the operator)

SIZES = [16, 8, 16, 4, 33]


def operands(branch: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor | None, ...]:
    """q, k, v and slots of two rows of 81 tokens, 4 heads in 2 groups, Dk 8 and Dv 6."""
    torch.manual_seed(0)
    num_keys = 9 if branch == "compressed" else 81
    shapes = ((2, 81, 4, 8), (2, num_keys, 2, 8), (2, num_keys, 2, 6))
    slots = torch.rand(2, 81, 2, 6).argsort(-1)[..., :4] if branch == "selected" else None
    return *(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes), slots


@pytest.mark.parametrize(
    ("branch", "chooses"), [("compressed", False), ("compressed", True), ("selected", False), ("sliding", False)]
)
def test_the_operator_passes_torchs_own_checks(branch: str, chooses: bool):
    arguments = (*operands(branch), branch, "vectorized", SIZES, 0, chooses, 200)
    torch.library.opcheck(torch.ops.nsa.attention.default, arguments)


@pytest.mark.parametrize("branch", ["compressed", "selected", "sliding"])
def test_the_operator_of_gradients_passes_torchs_own_checks(branch: str):
    q, k, v, slots = operands(branch)
    given = tuple(x.detach() for x in (q, k, v))
    out, norm, _ = torch.ops.nsa.attention(*given, slots, branch, "vectorized", SIZES, 0, False, None)
    arguments = (torch.randn_like(out), *given, out, norm, slots, branch, "vectorized", SIZES, 0, False, None)
    torch.library.opcheck(torch.ops.nsa.attention_backward.default, arguments)
    assert all(each.is_contiguous() for each in torch.ops.nsa.attention_backward(*arguments))
    assert all(each.is_contiguous() for each in torch.ops.nsa.attention(*given, *arguments[6:])[:2])


def test_the_operator_of_checked_slots_passes_torchs_own_checks():
    torch.library.opcheck(torch.ops.nsa.checked_slots.default, (torch.tensor([[[[0, 2, -1]]]]), 3))


def test_a_second_derivative_is_refused_by_name():
    q, k, v, slots = operands("sliding")
    out, *_ = torch.ops.nsa.attention(q, k, v, slots, "sliding", "vectorized", SIZES, 0, False, None)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives are not computed here"):
        torch.autograd.grad(gradient.sum(), q)


def test_neither_normaliser_nor_slots_are_differentiated():
    q, k, v, _ = operands("compressed")
    given = "compressed", "vectorized", SIZES, 0, True, None
    out, norm, slots = torch.ops.nsa.attention(q, k, v, None, *given)
    assert out.requires_grad
    assert not norm.requires_grad
    assert not slots.requires_grad


# A process of its own: the compiler cannot see through the tests' shape checks.
CHILD = """
import json
import sys
import torch
from torch.utils.checkpoint import checkpoint
from nsa import ModelConfig, NSAttention, Transformer

torch.manual_seed(0)
CONFIG = ModelConfig(
    dim=32, n_heads=4, n_kv_groups=2, d_k=8, d_v=6, l=8, d=4, l_sel=16, n_sel=4, w=24, n_layers=1, vocab_size=29
)
LENGTHS = (101, 77, 150)
facts = {}


def compiled(function, **options):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def with_gradients(function, module, given):
    module.zero_grad()
    out = function(given)
    out.float().square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def alike(function, module, *inputs):
    pairs = ((with_gradients(function, module, x), with_gradients(module, module, x)) for x in inputs)
    return all(len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in pairs)


for phi in sys.argv[1:]:
    layer = NSAttention(CONFIG.model_copy(update={"phi": phi}))
    hidden = [torch.randn(2, length, 32) for length in LENGTHS]
    facts[f"a layer of any length, {phi}"] = alike(compiled(layer, dynamic=True), layer, *hidden)
facts["one graph serves all lengths"] = torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
layer, x = NSAttention(CONFIG), hidden[0]
facts["a layer"] = alike(compiled(layer), layer, x)
model, ids = Transformer(CONFIG), [torch.randint(29, (2, length)) for length in LENGTHS]
facts["a model"] = alike(compiled(model), model, *ids[:1])
model = Transformer(CONFIG.model_copy(update={"phi": "conv"}))
facts["a model of any length, conv"] = alike(compiled(model, dynamic=True), model, *ids)
with torch.autocast("cpu", torch.bfloat16):
    facts["under autocast"] = alike(compiled(layer), layer, x)
facts["with activation checkpointing"] = alike(
    compiled(lambda given: checkpoint(layer, given, use_reentrant=False)), layer, x
)
inner = compiled(layer.branches)(x)
facts["each branch, gates and slots"] = all(map(torch.equal, inner, layer.branches(x)))
held = compiled(lambda given, slots: layer(given, slots=slots))
facts["slots held"] = torch.equal(held(x, inner.slots), layer(x, slots=inner.slots))
try:
    held(x, inner.slots + 1000)
except ValueError as error:
    facts["slots of no block are refused"] = str(error).startswith("slots must be -1 or in [0, 7), got")
for strict in (False, True):
    length = torch.export.Dim("length", min=70, max=4096)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: length},), strict=strict).module()
    facts[f"exported, strict={strict}"] = all(torch.equal(exported(each), layer(each)) for each in hidden)
print(json.dumps(facts))
"""
FACTS = (
    "a layer of any length, mlp",
    "a layer",
    "one graph serves all lengths",
    "a model",
    "a model of any length, conv",
    "under autocast",
    "with activation checkpointing",
    "each branch, gates and slots",
    "slots held",
    "slots of no block are refused",
    "exported, strict=False",
    "exported, strict=True",
)


@cache
def facts(phi: str) -> dict[str, bool]:
    done = subprocess.run([sys.executable, "-c", CHILD, phi], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fact", FACTS)
def test_compiled_whole_it_gives_the_bits_that_it_gives_eagerly(fact: str):
    assert facts("mlp")[fact]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("phi", ["avg", "conv"])
def test_a_layer_of_another_compression_is_compiled_for_any_length(phi: str):
    assert facts(phi)[f"a layer of any length, {phi}"]
