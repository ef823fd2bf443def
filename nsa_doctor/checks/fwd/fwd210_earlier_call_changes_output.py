"""FWD210 earlier-call-changes-output

Detects: an output in `eval()` that depends on what was done with the module before: calls of another length, batch,
dtype or mode or under autocast, training, `train()` and `eval()`, `state_dict()`, copies, how many calls there were; or
on a rare draw. And a loss that is another one when it is taken again.
Matters: a model is evaluated and served in another order of calls than it was trained in, and gives other answers.
Fix: look at the line named for an attribute, a cache or a count that outlives the call; what a call has to know comes
with its arguments, and what training learns lies in parameters and buffers.

Example:
    # faulty
    if self.table is None or len(self.table) < length:
        self.base *= length / len(self.table)  # every later call is rotated by another base
    # correct
    base = self.base * max(1.0, length / self.longest_trained)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.after_autocast import after_autocast
from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.checks._shared.evaluated_loss import loss_taken_again
from nsa_doctor.checks._shared.of_conversion import is_of_conversion
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.text import joined
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.random_draws import first_draw
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.call_schedule import evaluated, evaluation_steps, further_draws, further_repeats
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.probes.numerics.earlier_calls import differs_by, first_seen
from nsa_doctor.probes.numerics.long_sequence import longest_affordable
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 17


def run(subject: Subject) -> Iterator[Finding | Note]:
    if not evaluation_steps(subject):
        return
    sp = comparable_module(subject)
    steps = evaluation_steps(subject, further_repeats(sp, evaluated(subject)), _far_longer(sp))
    judge = differs_by(finest_precision(sp, _input(sp)).eps)
    replays = Replays(subject, sp.dtype, "eval")
    generators = _drawn_from(sp)
    steps = further_draws(subject, steps) if generators else steps
    seen = first_seen(replays.fresh(), steps, judge)
    if seen is not None and not is_of_conversion(sp, seen, steps):
        yield replays.finding("FWD210", seen, replays.cause(seen, judge))
    elif subject.profile != "smoke" and (found := after_autocast(subject) or loss_taken_again(subject, "FWD210")):
        yield found
    elif generators:
        x = _input(sp)
        place = first_draw(subject, sp.module, lambda: sp(x))
        yield Note(message=f"eval() draws from {joined(generators)} generator, which changes no output", where=place)


def _far_longer(sp: BuiltModule) -> list[int]:
    """Lengths at which tables grow and bases change: the longest that other checks look at, and one that is served."""
    if sp.subject.profile == "smoke":
        return []
    beyond = longest_affordable(sp)
    return [sp.subject.max_length, *(() if beyond is None or not _serves(sp, beyond[0]) else beyond[:1])]


def _serves(sp: BuiltModule, length: int) -> bool:
    """Whether a fresh module takes a sequence of that length: one that refuses it has a limit, and no memory."""
    fresh = comparable_module(sp.subject)
    with torch.no_grad(), unobserved():
        return not isinstance(attempt(lambda: fresh(fresh.input(length))), Caught)


def _drawn_from(sp: BuiltModule) -> tuple[str, ...]:
    """By a call without gradients, or by one with them and its backward."""
    seed_everything(sp.subject.seed)
    generators = Generators()
    with torch.no_grad():
        sp(_input(sp))
    if not generators.drawn_from() and "eval" in sp.subject.modes:
        forward_backward(sp, _input(sp))
    return generators.drawn_from()


def _input(sp: BuiltModule) -> Tensor:
    return sp.input(min(_LENGTH, sp.subject.max_length))


def planted(subject: Subject) -> Subject:
    def remembers_the_longest(module: nn.Module, x: Tensor) -> Tensor:
        longest = max(x.shape[1], getattr(module, "longest", 0))
        object.__setattr__(module, "longest", longest)
        output: Tensor = subject.forward(module, x)
        return output * (x.shape[1] / torch.tensor(longest, dtype=output.dtype)).sqrt()

    return replace(subject, forward=remembers_the_longest)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD101", "FWD103", "FWD206", "FWD208", "NAN101"),
    explained_by=("FWD103", "FWD206", "FWD208", "NAN101"),
    priority=405,
    unless=("stochastic",),
)
