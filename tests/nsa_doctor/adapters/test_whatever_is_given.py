"""Modules that raise for every input, by their own fault or for want of another; parameters that nobody can read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.request import SubjectRequest


def _draws(x: torch.Tensor) -> torch.Tensor:
    return torch.normal(torch.zeros(3), -torch.ones(3))


def _reads_nothing(x: torch.Tensor) -> torch.Tensor:
    return x * _NOWHERE.scale


def _wants_another(x: torch.Tensor) -> torch.Tensor:
    return x.logits


def _wants_images(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.conv2d(x, torch.zeros(4, 4, 3, 3))


def _wants_a_gpu(x: torch.Tensor) -> torch.Tensor:
    torch._C._cuda_init()
    return x


def _wants_a_package(x: torch.Tensor) -> torch.Tensor:
    import a_package_that_is_not_there

    return a_package_that_is_not_there.attend(x)


_NOWHERE: Any = None
WHATEVER = {  # what raises the same for every input, and whether that is the subject's own failure
    "draws by a negative spread": (_draws, True),
    "reads what is None": (_reads_nothing, True),
    "wants another input": (_wants_another, False),
    "wants images": (_wants_images, False),
    "wants a GPU": (_wants_a_gpu, False),
    "wants a package": (_wants_a_package, False),
}


@pytest.mark.parametrize("takes_more", [False, True])
@pytest.mark.parametrize("name", WHATEVER)
def test_what_raises_whatever_is_given_is_a_failure_of_the_subject(name: str, takes_more: bool) -> None:
    compute, is_failure = WHATEVER[name]

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 48), nn.Linear(24, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(compute(x)))

    class Conditioned(Raises):
        def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x)

    request, make = SubjectRequest(spec="x:y", lengths=(16,)), Conditioned if takes_more else Raises
    if is_failure and not takes_more:
        assert adapt(request, make).input == "embeddings"
    else:
        with pytest.raises(SubjectUnusableError, match="say what it takes with --input"):
            adapt(request, make)


class _Unreadable(nn.Parameter):
    """Stands for a tensor that lies elsewhere, and lets no function of torch near it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "__get__":
            raise TypeError(f"apply {func} to its .tensor")
        return super().__torch_function__(func, types, args, kwargs or {})


def _forgets_to_embed(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(16, 16)


def _wants_a_mask(x: torch.Tensor) -> torch.Tensor:
    return _with_mask(x)  # type: ignore[call-arg]


def _with_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x * mask


def _takes_four_kinds(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(x, 4).float()


def _takes_codebooks(x: torch.Tensor) -> torch.Tensor:
    rows, length, books = x.shape
    return x * (rows + length + books)


@pytest.mark.parametrize(
    ("compute", "is_failure"),
    [
        (_takes_four_kinds, False),
        (_takes_codebooks, False),
        (_forgets_to_embed, True),
        (_reads_nothing, True),
        (_wants_another, False),
        (_wants_a_mask, False),
        (_wants_a_gpu, False),
        (_wants_a_package, False),
    ],
)
def test_what_raises_of_tokens_that_a_user_speaks_of_is_a_failure_of_the_subject(
    compute: Callable[[torch.Tensor], torch.Tensor], is_failure: bool
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return compute(ids)

    request = SubjectRequest(spec="tests:make", input="tokens", lengths=(3, 5))
    if is_failure:
        assert adapt(request, Model).width == 64
        return
    with pytest.raises(SubjectUnusableError, match=r"given tokens of width 64 it raises .*\.py:\d+; say"):
        adapt(request, Model)


def test_a_parameter_that_cannot_be_read_is_refused_by_name() -> None:
    def make() -> nn.Module:
        module = nn.Linear(8, 8)
        module.register_parameter("curved", _Unreadable(torch.zeros(8)))
        return module

    message = (
        r"^subject x:y cannot be examined: its curved is a _Unreadable, which cannot be read as tensors are \(Type"
    )
    with pytest.raises(SubjectUnusableError, match=message):
        adapt(SubjectRequest(spec="x:y", lengths=(16,)), make)


def test_a_factory_that_wants_a_package_which_is_not_there_is_refused() -> None:
    def make() -> nn.Module:
        import a_package_that_is_not_there

        return a_package_that_is_not_there.Attention()

    with pytest.raises(SubjectUnusableError, match=r"^subject x:y cannot be built: ModuleNotFoundError"):
        adapt(SubjectRequest(spec="x:y", lengths=(16,)), make)
