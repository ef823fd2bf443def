"""A user's own models, which are written against transformers and registered nowhere."""

from transformers import KINDS, TinyConfig, TinyForCausalLM


class OwnForCausalLM(TinyForCausalLM):
    config_class = TinyConfig

    @classmethod
    def _from_config(cls, config: TinyConfig, attn_implementation: str = "sdpa", **_: str) -> "OwnForCausalLM":
        return cls(config, attn_implementation)


class PositionsForCausalLM(OwnForCausalLM):
    config_class = KINDS["tiny_positions"]


class WithoutConfig(OwnForCausalLM):
    config_class = None


class WithoutMaker(TinyForCausalLM):
    config_class = TinyConfig
