"""How large the logits of a fresh module are: their spread over the vocabulary, and the loss that they begin with."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.model.output_layer import OutputLayer, logits_of

_LENGTH, _ROWS = 33, 2
_TIMES = 3.0  # ln(V), of a loss that is far above that of a guess
_SPREAD = 4.0  # a standard deviation of logits; fresh models have about 1 and less
_FAR_BELOW = -1e3  # a column that is never above is masked
_SCALED = 1.25  # times what the layer makes, from which a factor behind it is said
_MEASURED = "loss", "spread", "weight", "scaled"
_ALIKE = 1e-3  # of sums of probabilities


@dataclass(frozen=True, kw_only=True)
class FirstLogits:
    """The loss in nats against targets drawn evenly, the spread of the logits, and the layer that gives them.

    `scaled` is how many times as large as what the layer makes the logits are, `weight` the spread of its weights.
    """

    vocabulary: int
    loss: float
    spread: float
    weight: float
    scaled: float
    layer: OutputLayer

    @classmethod
    def mean(cls, several: Iterable["FirstLogits"]) -> "FirstLogits":
        """What several seeds give on average, with the layer of the first."""
        all_ = list(several)
        mean = {name: sum(getattr(one, name) for one in all_) / len(all_) for name in _MEASURED}
        return replace(all_[0], **mean)

    @property
    def guess(self) -> float:
        """The loss of a guess among the vocabulary."""
        return math.log(self.vocabulary)

    @property
    def usual(self) -> float:
        """The standard deviation of weights that keeps values as large as they are."""
        return float(self.layer.fan_in**-0.5)

    @property
    def are_too_large(self) -> bool:
        """Whether the model is sure of what it cannot know."""
        return self.loss > _TIMES * self.guess and self.spread > _SPREAD

    def said(self) -> str:
        """What is wrong, in numbers."""
        tied = ", which is tied to the embedding," if self.layer.is_tied else ""
        is_as_made = 1 / _SCALED < self.scaled < _SCALED
        after = "" if is_as_made else f"; what it makes is multiplied by {self.scaled:.3g} after it"
        return (
            f"the cross-entropy of fresh weights against targets drawn evenly is {self.loss:.3g}, "
            f"{self.loss / self.guess:.2g} times ln({self.vocabulary}) = {self.guess:.3g}: logits have a standard "
            f"deviation of {self.spread:.3g} over the vocabulary; {self.layer.name}{tied} has one of "
            f"{self.weight:.3g}, "
            f"{self.weight / self.usual:.2g} times 1/sqrt({self.layer.fan_in}) = {self.usual:.3g}, and is given values "
            f"of {self.layer.given:.3g}{after}"
        )


def first_logits(sp: BuiltModule) -> FirstLogits:
    """What a module gives for random tokens; NotApplicableError where that is not logits of one layer."""
    x = sp.input(min(_LENGTH, sp.subject.max_length), batch=_ROWS)
    output, layer = logits_of(sp, x)
    if output.shape[-1] != sp.subject.width:
        raise NotApplicableError(f"its output has {output.shape[-1]} channels, not one for each of its tokens")
    if layer is None:
        raise NotApplicableError("its output is not what one linear layer gives")
    logits = output.detach().double().flatten(0, -2)
    logits = logits[:, (logits > _FAR_BELOW).any(0)]
    if logits.shape[1] < 2:
        raise NotApplicableError("its output is masked at all tokens but one")
    require_finite(logits, x.shape[1])
    if bool((logits >= 0).all()) and bool(((logits.sum(-1) - 1).abs() < _ALIKE).all()):
        raise NotApplicableError("its output is probabilities, not logits")
    spread = float(logits.std(-1).mean())
    return FirstLogits(
        vocabulary=logits.shape[1],
        loss=_loss(logits, sp.subject.seed),
        spread=spread,
        weight=float(layer.weight.detach().double().std()),
        scaled=spread / layer.made if layer.made else 1.0,
        layer=layer,
    )


def _loss(logits: Tensor, seed: int) -> float:
    """The cross-entropy against one target for each row, every token as likely."""
    generator = torch.Generator().manual_seed(seed + 15485863)
    targets = torch.randint(logits.shape[1], logits.shape[:1], generator=generator).to(logits.device)
    return float(cross_entropy(logits, targets))
