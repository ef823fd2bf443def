"""A user's own models, which are written against transformers and registered nowhere."""

from types import SimpleNamespace

from torch import Tensor
from transformers import KINDS, TinyConfig, TinyForCausalLM


class OwnForCausalLM(TinyForCausalLM):
    config_class = TinyConfig

    @classmethod
    def _from_config(cls, config: TinyConfig, attn_implementation: str = "sdpa", **_: str) -> "OwnForCausalLM":
        return cls(config, attn_implementation)


class PositionsForCausalLM(OwnForCausalLM):
    config_class = KINDS["tiny_positions"]


class RenamedForCausalLM(OwnForCausalLM):
    """Takes `cache`, as from transformers 5.24 on, reads no other name and answers the same one under two."""

    def forward(self, input_ids: Tensor, cache: list | None = None, **others: object) -> SimpleNamespace:
        known = {name: value for name, value in others.items() if name != "past_key_values"}
        answer = super().forward(input_ids, past_key_values=cache, **known)
        answer.cache = answer.past_key_values
        return answer


class FormerForCausalLM(OwnForCausalLM):
    """Takes `past_key_values` alone, while what it answers has both names."""

    def forward(self, input_ids: Tensor, past_key_values: list | None = None, **others: object) -> SimpleNamespace:
        known = {name: value for name, value in others.items() if name != "cache"}
        answer = super().forward(input_ids, past_key_values=past_key_values, **known)
        answer.cache = answer.past_key_values
        return answer


class WithoutContinuation(OwnForCausalLM):
    """Right by itself, with a `generate` that gives its forward an argument which it does not have."""

    def generate(self, ids: Tensor, **_: object) -> Tensor:
        return self(ids, cache=None)


class RaisingForCausalLM(OwnForCausalLM):
    """Joins what never fits, whatever the sizes."""

    def forward(self, input_ids: Tensor, **others: object) -> SimpleNamespace:
        answer = super().forward(input_ids, **others)
        answer.logits = answer.logits + answer.logits.mT
        return answer


class RefusingForCausalLM(OwnForCausalLM):
    """Takes what the caller has not, and says so."""

    def forward(self, input_ids: Tensor, **others: object) -> SimpleNamespace:
        raise ValueError("give it images")


class LargeForCausalLM(OwnForCausalLM):
    """Serves the sizes of its configuration, and no small ones."""

    def forward(self, input_ids: Tensor, **others: object) -> SimpleNamespace:
        answer = super().forward(input_ids, **others)
        answer.logits[..., self.config.max_position_embeddings] += 1
        return answer


class WithoutConfig(OwnForCausalLM):
    config_class = None


class WithoutMaker(TinyForCausalLM):
    config_class = TinyConfig
