"""What a GPU would refuse is seen where there is none, at the line to mend; what it takes is silent."""

import linecache
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.model.claimed_device import ClaimedDevices
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH = 8
DRAWS = torch.Generator()
OF_MODULE = torch.full((WIDTH,), 2.0)
NAMED = "cuda:0"
CHOSEN_AT_IMPORT = "cuda" if torch.cuda.is_available() else "cpu"


class Mixer(nn.Linear):
    """A layer that hands its output on through `effect`."""

    TABLE = torch.full((WIDTH,), 2.0)

    def __init__(self, effect: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.effect = effect
        self.table = torch.full((WIDTH,), 2.0)
        self.tables = {"slopes": [torch.full((WIDTH,), 2.0)]}
        self.register_buffer("mix", torch.eye(WIDTH).to_sparse(), persistent=False)
        self.register_buffer("held", torch.full((WIDTH,), 2.0), persistent=False)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.effect(self, super().forward(x))


class Scaled(torch.autograd.Function):
    """Twice its input, with a backward that makes what it multiplies by on the default device."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.full((WIDTH,), 2.0)


@lru_cache
def table_by_length(length: int) -> Tensor:
    return torch.ones(length, WIDTH)


@lru_cache
def table_by_device(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, WIDTH, device=device)


def masked(y: Tensor, mask: Tensor) -> Tensor:
    return (y @ y.mT).masked_fill(mask, -torch.inf).softmax(-1) @ y


def causal(length: int, **device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, **device).triu(1)


def keeps_table(module: nn.Module, y: Tensor) -> Tensor:
    if module.kept is None or len(module.kept) < y.shape[1]:
        module.kept = torch.ones(y.shape[1], WIDTH, device=y.device)
    return y * module.kept[: y.shape[1]]


def doubles_on_second(module: nn.Module, y: Tensor) -> Tensor:
    return 2 * y if y.device.index == 1 else y


class Halved(torch.autograd.Function):
    """The identity, whose gradient is half of what it has to be."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def halves_on_second(module: nn.Module, y: Tensor) -> Tensor:
    return Halved.apply(y) if y.device.index == 1 else y


def doubles_on_a_gpu(module: nn.Module, y: Tensor) -> Tensor:
    return 2 * y if y.is_cuda else y


def draws_of_its_own(module: nn.Module, y: Tensor) -> Tensor:
    return y + torch.rand((), generator=DRAWS)


def rounds_on_a_gpu(module: nn.Module, y: Tensor) -> Tensor:
    return y.bfloat16().to(y.dtype) if y.is_cuda else y


def raises_on_second(module: nn.Module, y: Tensor) -> Tensor:
    if y.get_device() == 1:
        raise ValueError("one GPU alone is served")
    return y


def under_device(module: nn.Module, y: Tensor) -> Tensor:
    with y.device:
        return y * torch.ones(WIDTH)


def under_autocast(module: nn.Module, y: Tensor) -> Tensor:
    with torch.autocast(y.device.type, dtype=torch.bfloat16):
        return (y @ y.mT @ y).float()


FAULTY = {  # an effect, and words of the finding
    "mask without a device": (lambda m, y: masked(y, causal(y.shape[1])), "is made in causal with no device named"),
    "positions": (lambda m, y: y + torch.arange(y.shape[1])[:, None], "with no device named"),
    "attribute": (lambda m, y: y * m.table, "is table of Mixer, no parameter and no buffer"),
    "computed from an attribute": (lambda m, y: y * m.table.exp()[None], "is table of Mixer"),
    "attribute in containers": (lambda m, y: y * m.tables["slopes"][0], "is tables['slopes'][0] of Mixer"),
    "global": (lambda m, y: y * OF_MODULE, "test_devices.OF_MODULE"),
    "of the class": (lambda m, y: y * m.TABLE, "the tensor on cpu is Mixer.TABLE"),
    "numbers of a GPU": (lambda m, y: y * torch.tensor([y.max()] * WIDTH), "with no device named"),
    "named": (lambda m, y: masked(y, causal(y.shape[1], device=NAMED)), "with that device named; on the first GPU"),
    "host": (lambda m, y: y + float(y.detach().numpy().max()), "can't convert cuda:0 device type tensor to numpy"),
    "backward": (lambda m, y: Scaled.apply(y), "backward raises"),
    "second differs": (doubles_on_second, "the output on a second GPU differs"),
    "gradient on the second differs": (halves_on_second, "the gradient on a second GPU differs"),
    "a GPU differs": (doubles_on_a_gpu, "the output on a GPU differs from that on the CPU"),
    "second raises": (raises_on_second, "one GPU alone is served; on the first GPU it does not"),
    "cached by length": (lambda m, y: y * table_by_length(y.shape[1]), "is made in table_by_length"),
}


def through_the_cpu(module: nn.Module, y: Tensor) -> Tensor:
    bent = y.cpu() * torch.linspace(0.5, 1.0, WIDTH)
    return y + bent.to(y.device).tanh() + y.to("cpu").double().to(y)


def by_sparse(module: nn.Module, y: Tensor) -> Tensor:
    return torch.sparse.mm(module.mix, y.flatten(0, 1).mT).mT.view_as(y)


def cuts_on_second(module: nn.Module, y: Tensor) -> Tensor:
    return y if y.get_device() != 1 else y[:, 1:]


def breaks_on_second(module: nn.Module, y: Tensor) -> Tensor:
    return y if y.get_device() != 1 else y.unflatten(1, (5, 5, 5))


def asks_the_second(module: nn.Module, y: Tensor) -> Tensor:
    if y.get_device() == 1:
        torch.cuda.synchronize(y.device)  # raises where there is no CUDA
    return y


HEALTHY = {
    "by way of the CPU": through_the_cpu,
    "sparse": by_sparse,
    "forced to the host": lambda m, y: y + float(y.detach().numpy(force=True).mean()) * 0,
    "numbers on the CPU": lambda m, y: y * float(torch.tensor([y.detach().max(), y.detach().min()]).numpy().sum()) * 0,
    "device of the input": lambda m, y: masked(y, causal(y.shape[1], device=y.device)),
    "buffer": lambda m, y: y * m.held,
    "moved when used": lambda m, y: y * m.table.to(y) + OF_MODULE.to(y.device),
    "type_as": lambda m, y: y * m.table.type_as(y),
    "made like": lambda m, y: y * torch.ones_like(y) + y.new_zeros(WIDTH),
    "number on the CPU": lambda m, y: y * torch.tensor(2.0),
    "picked by the CPU's": lambda m, y: y[:, torch.arange(y.shape[1])],
    "table kept": keeps_table,
    "cached by device": lambda m, y: y * table_by_device(y.shape[1], y.device),
    "under the device": under_device,
    "checkpointed": lambda m, y: checkpoint(lambda y: y.exp() * m.held, y, use_reentrant=False),
    "vmap": lambda m, y: torch.vmap(lambda row: row * m.held)(y),
    "host by way of the CPU": lambda m, y: y + float(y.detach().cpu().numpy().mean()) * 0,
    "autocast": under_autocast,
    "rounded on a GPU": rounds_on_a_gpu,
    "drawn": draws_of_its_own,
}


def examined(effect: Callable[[nn.Module, Tensor], Tensor], **changes) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Mixer(effect)

    made = {"name": "tests", "build": build, "forward": lambda m, x: m(x), "input": "embeddings", "width": WIDTH}
    return run_check(registry.load("FWD225"), Subject(**{**made, "max_length": 128, "packages": ("tests",), **changes}))


@pytest.mark.parametrize("name", FAULTY)
def test_what_a_gpu_refuses_is_found(name: str) -> None:
    table_by_length.cache_clear()
    effect, words = FAULTY[name]
    (finding,) = examined(effect).findings
    assert words in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_a_gpu_takes_is_silent(name: str, seed: int) -> None:
    table_by_device.cache_clear()
    result = examined(HEALTHY[name], seed=seed)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_the_line_that_makes_an_attribute_is_named() -> None:
    (finding,) = examined(FAULTY["attribute"][0]).findings
    assert "self.table = " in linecache.getline(__file__, finding.where.line)


@pytest.mark.skipif(CHOSEN_AT_IMPORT != "cpu", reason="a GPU is there")
def test_a_device_that_was_chosen_at_import_is_a_note() -> None:
    result = examined(lambda m, y: y * torch.ones(WIDTH, device=CHOSEN_AT_IMPORT))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "with that device named" in result.notes[0]


@pytest.mark.skipif(CHOSEN_AT_IMPORT != "cpu", reason="a GPU is there")
def test_what_is_handed_to_a_device_that_was_chosen_at_import_is_a_note_where_it_lies_there() -> None:
    result = examined(lambda m, y: y * torch.ones(WIDTH).to(CHOSEN_AT_IMPORT))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "with that device named" in result.notes[0]


def test_decoding_that_goes_wrong_on_a_second_gpu_is_found() -> None:
    def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
        return module(x), x.shape[1]

    def step(module: nn.Module, x: Tensor, past: int) -> tuple[Tensor, int]:
        return module(x) * (1 + (x.device.index == 1)), past + 1

    (finding,) = examined(lambda m, y: y, prefill=prefill, step=step).findings
    assert "the output of decoding on a second GPU differs" in finding.message


def test_what_was_kept_for_another_gpu_is_a_note() -> None:
    kept: dict[int, Tensor] = {}
    result = examined(lambda m, y: y * kept.setdefault(y.shape[1], torch.ones(WIDTH, device=y.device)))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "cuda:1 and cuda:0" in result.notes[0]


@pytest.mark.parametrize("effect", [cuts_on_second, breaks_on_second])
def test_what_the_second_gpu_alone_refuses_is_found(effect: Callable[[nn.Module, Tensor], Tensor]) -> None:
    (finding,) = examined(effect).findings
    assert "on cuda:1, forward raises" in finding.message
    assert "on the first GPU it does not" in finding.message


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_what_torch_says_of_a_second_gpu_is_a_note() -> None:
    result = examined(asks_the_second)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "CUDA" in result.notes[0]


def test_a_module_that_refuses_to_move_is_a_note() -> None:
    class Stays(Mixer):
        def to(self, *args, **kwargs):
            if any(isinstance(each, torch.device) for each in args):
                raise NotImplementedError("use load_on() instead")
            return super().to(*args, **kwargs)

    result = examined(lambda m, y: y, build=lambda seed: Stays(lambda m, y: y))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "use load_on() instead" in result.notes[0]


def test_a_subclass_of_tensors_is_judged() -> None:
    class Named(Tensor):
        pass

    assert examined(lambda m, y: y.as_subclass(Named) * m.held).findings == ()


def test_a_cache_made_without_a_device_is_found_in_decoding() -> None:
    def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.zeros(x.shape[0], 128, WIDTH)
        cache[:, : x.shape[1]] = x  # torch copies from one device to another
        return module(x), cache

    def step(module: nn.Module, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        return module(x) + cache[:, :1], cache

    (finding,) = examined(lambda m, y: y, prefill=prefill, step=step).findings
    assert "decoding raises" in finding.message
    assert finding.where.function == "prefill"


def test_code_that_asks_cuda_itself_is_followed_as_on_another_kind_of_gpu() -> None:
    def asks(module: nn.Module, y: Tensor) -> Tensor:
        if y.is_cuda and torch.cuda.get_device_capability(y.device) < (8, 0):
            return y
        return y + torch.zeros(WIDTH)

    (finding,) = examined(asks).findings
    assert "on xpu:0" in finding.message


def test_code_that_asks_every_gpu_is_left_with_a_note() -> None:
    def asks(module: nn.Module, y: Tensor) -> Tensor:
        return y if y.is_cpu else y * torch.cuda.get_device_capability(y.device)[0]

    result = examined(asks)
    assert result.verdict is Verdict.PASS
    assert "cannot be followed" in result.notes[0]


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(WIDTH, 2, batch_first=True, dropout=0.0)
    x, gradients = torch.randn(2, 5, WIDTH), []
    for device in (None, torch.device("cuda", 1)):
        plain.zero_grad()
        if device is None:
            plain(x).sum().backward()
        else:
            with ClaimedDevices(("tests",)).on(device):
                plain.to(device)(x.to(device)).sum().backward()
        gradients.append([each.grad.clone() for each in plain.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_nothing_claims_anything_beyond_the_region() -> None:
    x = torch.ones(2)
    with ClaimedDevices(()).on(torch.device("cuda", 1)):
        x = x.to("cuda")
        assert (str(x.device), x.is_cuda, x.get_device()) == ("cuda:1", True, 1)
    assert str(x.device) == "cpu"
