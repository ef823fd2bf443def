"""What FWD225 says of a GPU that is not there is what one does that is."""

import pytest
import torch
from torch import Tensor

from tests.nsa_doctor.checks.test_devices import FAULTY, HEALTHY, WIDTH, Mixer, table_by_device, table_by_length

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DIFFERS = {"second differs", "gradient on the second differs"}
ON_SECOND = {"named", "second raises"} | DIFFERS  # found by going to a second GPU
REFUSED = [name for name in FAULTY if name not in ON_SECOND and name != "a GPU differs"]


def passed(effect, index: int) -> Tensor:
    """The output, beside the input's gradient, of passes on one GPU of a module built and moved as a user would."""
    table_by_length.cache_clear()
    table_by_device.cache_clear()
    torch.manual_seed(0)
    module = Mixer(effect).to(torch.device("cuda", index))
    x = torch.randn(2, 67, WIDTH).to(torch.device("cuda", index)).requires_grad_()
    output = module(x)
    output.square().sum().backward()
    torch.cuda.synchronize(index)
    assert x.grad is not None
    return torch.cat((output.detach(), x.grad))


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # before the mix-up that is refused
@pytest.mark.parametrize("name", REFUSED)
def test_a_gpu_refuses_what_is_found(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        passed(FAULTY[name][0], 0)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_gpu_takes_what_is_silent(name: str) -> None:
    for index in range(min(2, torch.cuda.device_count())):
        assert passed(HEALTHY[name], index).isfinite().all()


def test_a_gpu_gives_what_the_cpu_does_not() -> None:
    effect = FAULTY["a GPU differs"][0]
    torch.manual_seed(0)
    module, x = Mixer(effect), torch.randn(2, 67, WIDTH)
    assert not torch.allclose(module.cuda()(x.cuda()).cpu(), module.cpu()(x), rtol=1e-2)


@pytest.mark.parametrize("name", sorted(ON_SECOND))
def test_a_second_gpu_shows_what_the_first_does_not(name: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    first = passed(FAULTY[name][0], 0)
    if name in DIFFERS:
        assert not torch.allclose(passed(FAULTY[name][0], 1).cpu(), first.cpu())
    else:
        with pytest.raises((RuntimeError, ValueError)):
            passed(FAULTY[name][0], 1)
