"""Parts of a subject's own that normalise by the batch in training and by kept statistics in eval(), by behaviour."""

import re

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import NORMS_BY_BATCH
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.state import preserved_state, seed_everything

_LENGTH, _ROWS = 19, 5
_STATISTIC = re.compile(
    r"(^|_)(running|moving|means?|mu|vars?|variance|std|sigma|stats?|rms|center|centre|moments?|scale|avg|ema)(_|$)",
    re.IGNORECASE,
)
_MOST_PASSES = 200  # until what is kept has followed the batch
_STILL, _ALIKE = 1e-5, 0.25  # of what is kept; of the spread of the output, where a variance of few values is corrected


def batch_statistics(built: BuiltModule) -> set[str]:
    """Paths of the parts whose buffers a training pass moves, that mix rows by them and by nothing else.

    Once what they keep has come to be that of a batch, they answer it in eval() as they do in training.
    """
    held = _held(built.module)
    if not held or built.subject.is_slow:
        return set()
    state = ModuleState(built.module)
    with unobserved(), torch.no_grad(), preserved_state():
        found = attempt(lambda: _moved(built, held))
    state.restore()
    return set() if isinstance(found, Caught) else found


def _held(module: nn.Module) -> dict[tuple[str, str], Tensor]:
    """Buffers that by their names are statistics, of parts that train, by path and name."""
    return {
        (path, name): buffer.clone()
        for path, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if part.training
        and not isinstance(part, NORMS_BY_BATCH)
        and buffer.is_floating_point()
        and _STATISTIC.search(name)
    }


def _moved(built: BuiltModule, before: dict[tuple[str, str], Tensor]) -> set[str]:
    module, x = built.module, built.input(min(_LENGTH, built.subject.max_length), _ROWS)
    others = torch.cat((x[:1], built.input(x.shape[1], _ROWS, built.subject.seed + 1)[1:]))
    first, mixed = _output(built, x), _output(built, others)
    after = _held(module)
    paths = {path for path, name in before if not torch.equal(before[path, name], after[path, name])}
    if not paths or bool(torch.isclose(first[0], mixed[0]).all()):
        return set()
    for _ in range(_MOST_PASSES):
        kept, trained = _held(module), _output(built, x)
        if all(_is_still(each, kept[key]) for key, each in _held(module).items() if key in kept):
            break
    for path in paths:
        module.get_submodule(path).training = False
    evaluated = _output(built, x)
    for path in paths:
        module.get_submodule(path).training = True
    apart = float((evaluated - trained).square().mean().sqrt())
    return paths if apart <= _ALIKE * float(trained.std()) else set()


def _output(built: BuiltModule, x: Tensor) -> Tensor:
    """The answer to x, which leaves behind what it leaves."""
    seed_everything(built.subject.seed)
    answer = built.subject.forward(built.module, x.clone())
    return answer if isinstance(answer, Tensor) else answer[0]


def _is_still(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= _STILL * float(other.abs().max().clamp_min(_STILL))
