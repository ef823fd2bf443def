"""The configuration of a model as transformers keeps it in config.json, and the ModelConfig that it stands for."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from nsa.config import ModelConfig
from nsa.strict import ConfigError, shown

LAYER_TYPE = "native_sparse_attention"

# Field of ModelConfig: the name that transformers has for it. The others have one name in both.
_NAMES = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_groups": "num_key_value_heads",
    "d_k": "head_dim",
    "d_v": "v_head_dim",
    "n_layers": "num_hidden_layers",
    "mlp_dim": "intermediate_size",
    "tie_embeddings": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
}
# What other models compute with and this one does not: a value other than these would be ignored.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),
    "attention_dropout": (None, 0, 0.0),
    "hidden_act": (None, "silu"),
    "is_causal": (None, True),
    "mlp_bias": (None, False),
    "per_layer_config": (None,),
    "rope_parameters": (None,),
    "rope_scaling": (None,),
    "sliding_window": (None,),
}


@strict  # type: ignore[untyped-decorator, unused-ignore]
class NSAConfig(PreTrainedConfig):
    """Everything an `NSAModel` needs, under the names that transformers gives it.

    vocab_size to rms_norm_eps are those of `nsa.ModelConfig`: hidden_size is its dim, num_key_value_heads its
    n_kv_groups, head_dim and v_head_dim its d_k and d_v, intermediate_size its mlp_dim (None for 8/3 · hidden_size,
    rounded up to 64). l, d, l_sel, n_sel, w, phi, gate, gate_temperature, shared_kv and branch are its own.
    use_cache: whether a forward pass without gradients returns its cache.

    Raises ConfigError, a ValueError, for what cannot be and for settings of other models that have no effect here, and
    what huggingface_hub raises for a value of another type.
    """

    model_type = "nsa"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012 - as its base class declares it

    vocab_size: int = 256
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 2
    head_dim: int = 64
    v_head_dim: int = 64
    intermediate_size: int | None = None
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    l: int = 32  # noqa: E741
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512
    phi: str = "avg"
    gate: str = "softmax"
    gate_temperature: float = 1.0
    shared_kv: bool = False
    branch: str = "all"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, harmless in _WITHOUT_EFFECT.items():
            if name in kwargs and kwargs[name] not in harmless:
                raise ConfigError(f"{name} has no effect on this model: leave it out, got {shown(kwargs[name])}")
        super().__post_init__(**kwargs)
        self.model_config()  # refuses an impossible one

    @classmethod
    def from_model_config(cls, config: ModelConfig, **others: Any) -> "NSAConfig":
        """The configuration of the same model; `others` are fields that ModelConfig lacks, such as pad_token_id."""
        values = {_NAMES.get(name, name): getattr(config, name) for name in ModelConfig.model_fields}
        return cls(**values, **others)

    def model_config(self) -> ModelConfig:
        """What a `Transformer` is built of; raises ConfigError with a sentence that starts with the key."""
        values = {name: getattr(self, _NAMES.get(name, name)) for name in ModelConfig.model_fields}
        try:
            return ModelConfig(**values)
        except ConfigError as error:
            key, _, rest = str(error).partition(" ")
            raise ConfigError(f"{_NAMES.get(key, key)} {rest}") from None

    @property
    def layer_types(self) -> list[str]:
        """The kind of each layer, by which transformers finds what its caches hold of it."""
        return [LAYER_TYPE] * self.num_hidden_layers

    def validate_layer_type(self) -> None:
        """Nothing: `layer_types` follows from the number of layers."""
