"""A part that is named for an operation known exactly is found where it computes another; odd forms of it are not."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.numerics.operation_names import models_among, operation_of
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import misnamed_parts as parts
from tests.nsa_doctor.checks import oddly_named_functions as odd_functions
from tests.nsa_doctor.checks import oddly_named_parts as odd
from tests.nsa_doctor.small_subjects import small_subject

DIM = 32


class Encoder(nn.Module):
    """A part behind a linear layer, and what it gives, brought to the width of the input."""

    def __init__(self, part: nn.Module, width: int = DIM) -> None:
        super().__init__()
        self.enter, self.part = nn.Linear(DIM, width), part

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(self.enter(x))
        return torch.cat((y, y), dim=-1)[..., :DIM] if y.shape[-1] < DIM else y


class Calling(nn.Module):
    """A part that calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    """The check's result for an encoder with such a part."""
    return run_check(registry.load("FWD267"), small_subject(lambda: Encoder(make()), width=DIM))


def only_finding(result: Result, name: str) -> str:
    """What is said of the part, at the line that is marked."""
    (finding,) = result.findings
    assert result.verdict is Verdict.FAIL
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
    assert finding.message.startswith(f"{name} is not what its name says: ")
    return finding.message.partition(": ")[2]


@pytest.mark.parametrize("name", parts.FAULTY)
def test_a_part_that_computes_something_else_is_found_at_its_line(name: str) -> None:
    kind, words = parts.FAULTY[name]
    assert words in only_finding(examined(kind), kind.__name__)


@pytest.mark.parametrize("name", parts.FAULTY_FUNCTIONS)
def test_a_function_that_computes_something_else_is_found_at_its_line(name: str) -> None:
    call, function = parts.FAULTY_FUNCTIONS[name]
    only_finding(examined(lambda: Calling(call)), function)


def test_little_is_asked_of_a_part_that_is_given_much() -> None:
    sizes: list[int] = []

    class LayerNorm2d(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x / (x.square().mean(1, keepdim=True) + parts.EPS)  # here

    class Stretched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = LayerNorm2d()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x.mT.unsqueeze(-1).repeat(1, 1, 16, 64))
            return y[:, :, : x.shape[1], 0].mT

    assert "of their spread" in only_finding(examined(Stretched), "LayerNorm2d")
    assert max(sizes) > 1 << 17
    assert sum(size > 1 << 14 for size in sizes) < len(sizes) / 4


def test_a_function_that_a_part_of_its_name_calls_is_one_finding() -> None:
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return parts.swish(x)

    only_finding(examined(Swish), "Swish")


@pytest.mark.parametrize("name", odd.HEALTHY)
def test_a_form_of_the_operation_is_silent(name: str) -> None:
    result = examined(odd.HEALTHY[name])
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("name", odd_functions.HEALTHY_FUNCTIONS)
def test_a_function_that_computes_a_form_of_it_is_silent(name: str) -> None:
    result = examined(lambda: Calling(odd_functions.HEALTHY_FUNCTIONS[name]))
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["swish", "gelu", "rms", "layer", "glu"])
def test_rounding_is_no_departure(name: str, dtype: str) -> None:
    make = odd.HEALTHY[name]

    class Pinned(nn.Module):
        """Computes in that dtype, whatever it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.part = make()

        def forward(self, x: Tensor) -> Tensor:
            narrow = getattr(torch, dtype)
            y: Tensor = self.part.to(narrow)(x.to(narrow))
            return y.to(x.dtype)

    assert not examined(Pinned).findings


def test_weights_are_as_they_were_afterwards() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(odd.HEALTHY["layer-of-torch"]())
        return made[-1]

    kept: list[dict[str, Tensor]] = []

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = make()

        def forward(self, x: Tensor) -> Tensor:
            kept.append({name: each.detach().clone() for name, each in self.part.named_parameters()})
            y: Tensor = self.part(x)
            return y

    assert examined(Kept).verdict is Verdict.PASS
    after = dict(made[-1].named_parameters())
    assert kept
    assert all(torch.equal(kept[0][name], after[name]) for name in after)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        *(("Swish", "swish"), ("SwishMe", "swish"), ("SiLUActivation", "swish"), ("_silu", "swish")),
        *(
            ("NewGELUActivation", "gelu"),
            ("GELUTanh", "gelu"),
            ("gelu_new", "gelu"),
            ("ReluSquared", "squaredrelu"),
            ("ReLU2", "relu2"),
        ),
        *(("LayerNorm2d", "layernorm"), ("LayerNormFp32", "layernorm"), ("CustomRMSNorm", "rmsnorm")),
        *(
            ("FTSwish", ""),
            ("HardSwish", ""),
            ("ClippedGELU", ""),
            ("SwiGLUFFN", ""),
            ("SwishMLP", ""),
            ("GLUBlock", ""),
        ),
        *(("GroupRMSNorm", ""), ("RMSNormGated", ""), ("AdaLayerNorm", ""), ("LogSoftmax", ""), ("Softmax", "")),
        *(("LayerNormAct", ""), ("LayerNormLinear", ""), ("BatchNorm", ""), ("Scale", ""), ("Norm", "")),
    ],
)
def test_what_a_name_says(name: str, operation: str) -> None:
    assert operation_of(name) == operation


def test_what_several_parts_of_a_model_begin_with_is_its_name() -> None:
    assert operation_of("LlamaRMSNorm") == ""
    parts = {"LlamaRMSNorm", "LlamaMLP", "LlamaAttention"}
    assert operation_of("LlamaRMSNorm", parts, {"LlamaModel"}) == "rmsnorm"
    assert operation_of("LlamaRMSNorm", parts, {"Encoder"}) == ""
    assert operation_of("T5LayerNorm", {"T5Stack", "T5Block", "T5Attention"}, {"T5Config"}) == "layernorm"
    assert operation_of("LlamaRMSNorm", {"LlamaRMSNorm", "LlamaMLP"}, {"LlamaModel"}) == ""
    assert operation_of("GatedRMSNorm", {"GatedMLP", "GatedAttention"}, {"GatedModel"}) == ""
    assert operation_of("HardMish", {"HardBlock", "HardAttention", "HardSigmoid"}, {"HardModel"}) == ""
    assert operation_of("LorentzLayerNorm", {"LorentzMLP", "LorentzAttention"}, {"LorentzModel"}) == ""


def test_names_of_whole_models() -> None:
    names = {"LlamaModel", "LlamaConfig", "LlamaForCausalLM", "Model", "LlamaMLP", "TaylorAttention"}
    assert models_among(names) == {"LlamaModel", "LlamaConfig", "LlamaForCausalLM"}


class LlamaConfig:
    """A configuration says of which model the parts beside it are."""


def test_what_no_model_is_called_is_a_word_of_the_operation() -> None:
    class SumMLP(nn.Linear):
        pass

    class SumAttention(nn.Linear):
        pass

    class SumRMSNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.sum(-1, keepdim=True)

    assert not examined(lambda: nn.Sequential(SumMLP(DIM, DIM), SumAttention(DIM, DIM), SumRMSNorm())).findings


def test_a_part_behind_the_name_of_its_model_is_found() -> None:
    class LlamaMLP(nn.Linear):
        pass

    class LlamaAttention(nn.Linear):
        pass

    class LlamaRMSNorm(parts.Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x * x.abs().mean(-1, keepdim=True).reciprocal()  # here

    def make() -> nn.Module:
        return nn.Sequential(LlamaMLP(DIM, DIM), LlamaAttention(DIM, DIM), LlamaRMSNorm())

    only_finding(examined(make), "LlamaRMSNorm")


def test_torchs_own_are_not_asked() -> None:
    made = (nn.SiLU(), nn.GELU(), nn.LayerNorm(DIM), nn.RMSNorm(DIM), nn.Softmax(-1), nn.GLU())
    assert examined(lambda: nn.Sequential(*made)).verdict is Verdict.PASS


def test_a_part_that_the_pass_does_not_call_is_not_judged() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.swish = parts.FAULTY["tanh"][0]()

        def forward(self, x: Tensor) -> Tensor:
            return functional.silu(x)

    assert examined(Idle).verdict is Verdict.PASS
