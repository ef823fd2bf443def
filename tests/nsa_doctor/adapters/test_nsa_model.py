"""The language model of `nsa` as a subject: its oracle is right, and what is wrong outside attention is found."""

import pytest
import torch
from torch.nn.functional import silu

from nsa.config import ModelConfig
from nsa.nn import transformer
from nsa.nn.norm import RMSNorm
from nsa_doctor.adapters.nsa_model import builtin_model, model_subject, oracle
from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import SubjectOptions
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check

SIZES = {"dim": 16, "n_heads": 2, "n_kv_groups": 1, "d_k": 8, "d_v": 8, "vocab_size": 23}
SPARSITY = {"l": 4, "d": 2, "l_sel": 4, "n_sel": 3, "w": 6}


def config(**changes) -> ModelConfig:
    return ModelConfig(**SIZES, **SPARSITY, **changes)


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, {"gate": "sigmoid"}, {"n_layers": 3, "phi": "mlp"}])
def test_the_model_is_what_the_equations_say(changes):
    subject = model_subject(config(**changes))
    model = subject.build(0).double()
    ids = torch.randint(23, (2, 37))
    torch.testing.assert_close(model(ids), oracle(model, ids), rtol=1e-10, atol=1e-12)


def test_it_has_a_name_on_the_command_line():
    whom = SubjectOptions(subject="nsa-model")
    request = options.examined(whom, device="cpu", seed=0, timeout=30.0)
    assert request.spec == "nsa_doctor.adapters.nsa_model:builtin_model"
    assert builtin_model().width == 256


def halves_swapped(self, x):
    up, gate = self.gate_up(x).chunk(2, dim=-1)
    return self.down(silu(gate) * up)


def mean_taken_off(self, x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt() * self.weight


def residual_lost(self, x, cache=None, cu_seqlens=None):
    x = self.attention(self.attention_norm(x), cache, cu_seqlens)
    return x + self.mlp(self.mlp_norm(x))


@pytest.mark.parametrize(
    ("place", "name", "faulty"),
    [
        (transformer.SwiGLU, "forward", halves_swapped),
        (RMSNorm, "forward", mean_taken_off),
        (transformer.Block, "forward", residual_lost),
    ],
    ids=["swiglu", "norm", "residual"],
)
def test_what_is_wrong_outside_attention_is_found(monkeypatch, place, name, faulty):
    subject = model_subject(config())
    codes = [code for code, entry in registry.entries().items() if "oracle" in entry.needs and code.startswith("FWD")]
    assert codes
    assert all(run_check(registry.load(code), subject).verdict is Verdict.PASS for code in codes)
    monkeypatch.setattr(place, name, faulty)
    assert Verdict.FAIL in [run_check(registry.load(code), subject).verdict for code in codes]
