"""Configuration: YAML files to frozen, strict models, with errors a person can act on.

A file has the sections `model`, `nsa`, `data`, `train` and `runtime`. `NSAConfig` is what one attention layer needs,
`ModelConfig` what a `Transformer` needs (the sections `model` and `nsa` together), `RunConfig` the whole file.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from nsa.ops.geometry import Geometry


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value seen and what is allowed."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SparsityConfig(_Strict):
    """The section `nsa`: which keys a query reads, and how the branches are mixed."""

    l: PositiveInt = Field(32, description="length of a compressed block, in tokens")  # noqa: E741
    d: PositiveInt = Field(16, description="stride between compressed blocks, in tokens")
    l_sel: PositiveInt = Field(64, description="length of a selection block, in tokens")
    n_sel: PositiveInt = Field(16, description="selection blocks per query, the 3 forced ones included")
    w: PositiveInt = Field(512, description="sliding window, in tokens, the query's own included")
    phi: Literal["avg", "mlp", "conv"] = Field("avg", description="how a block is compressed to one key and value")
    gate: Literal["softmax", "sigmoid"] = Field("softmax", description="how gate logits become branch weights")
    gate_temperature: PositiveFloat = Field(1.0, description="divides the gate logits of a softmax gate")
    shared_kv: bool = Field(False, description="one key and value projection for all branches")

    @model_validator(mode="after")
    def _check_geometry(self) -> Self:
        if self.gate == "sigmoid" and self.gate_temperature != 1.0:
            raise ValueError(f"gate_temperature must be 1.0 with a sigmoid gate, got {self.gate_temperature}")
        _ = self.geometry  # refuses an impossible one
        return self

    @property
    def geometry(self) -> Geometry:
        """Block sizes alone, as the operators take them."""
        return Geometry(l=self.l, d=self.d, l_sel=self.l_sel, n_sel=self.n_sel, w=self.w)


class NSAConfig(SparsityConfig):
    """Everything one `NSAttention` layer needs."""

    dim: PositiveInt = Field(description="width of the residual stream")
    n_heads: PositiveInt = Field(description="query heads")
    n_kv_groups: PositiveInt = Field(description="key/value groups; each serves n_heads / n_kv_groups heads")
    d_k: PositiveInt = Field(description="size of a query and key head; even, for RoPE")
    d_v: PositiveInt = Field(description="size of a value head")
    rope_theta: PositiveFloat = Field(10_000.0, description="base of the rotary frequencies")

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.n_heads % self.n_kv_groups:
            raise ValueError(f"n_heads must be a multiple of n_kv_groups={self.n_kv_groups}, got {self.n_heads}")
        if self.d_k % 2:
            raise ValueError(f"d_k must be even for rotary embeddings, got {self.d_k}")
        return self


class ModelConfig(NSAConfig):
    """Everything a `Transformer` needs."""

    n_layers: PositiveInt = Field(1, description="transformer blocks")
    vocab_size: PositiveInt = Field(256, description="token ids; follows the tokenizer when the file does not say")
    mlp_dim: PositiveInt | None = Field(None, description="SwiGLU width; default 8/3 · dim, rounded up to 64")
    tie_embeddings: bool = Field(True, description="the output head shares the embedding's weight")
    norm_eps: PositiveFloat = Field(1e-5, description="added to the mean square in RMSNorm")


class DataConfig(_Strict):
    """The section `data`."""

    tokenizer: str = Field("byte", min_length=1, description="byte, gpt2, or a tokenizers file")


class TrainConfig(_Strict):
    """The section `train`."""

    steps: PositiveInt = Field(200, description="optimizer steps")
    seq_len: PositiveInt = Field(128, description="tokens per row")
    batch_size: PositiveInt = Field(8, description="rows per micro-batch")
    lr: PositiveFloat = Field(3e-4, description="peak learning rate")
    lr_schedule: Literal["cosine", "constant"] = Field("cosine", description="shape after warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled decay")
    grad_clip: float = Field(0.0, ge=0, description="largest gradient norm; 0 leaves it alone")
    accumulate_grad_batches: PositiveInt = Field(1, description="micro-batches per optimizer step")
    log_every: PositiveInt = Field(20, description="steps between log lines")
    eval_every: int = Field(0, ge=0, description="steps between evaluations; 0 for none")
    save_every: int = Field(0, ge=0, description="steps between checkpoints; 0 for the last alone")
    seed: int = Field(1337, ge=0, description="seed of weights and data order")
    out_dir: str = Field("artifacts", min_length=1, description="where a run writes")


class RuntimeConfig(_Strict):
    """The section `runtime`."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU when there is one")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="dtype of activations")
    use_flash: bool = Field(False, description="ask for flash-attn; refused where it cannot serve")
    use_triton_sel: Literal[False] = Field(False, description="no Triton selection kernel exists")


class RunConfig(_Strict):
    """One configuration file."""

    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def load_config(source: str | Path) -> RunConfig:
    """Read a YAML file, or a built-in configuration by name (`m7c_125m_fast_log`, `train_showcase`).

    Raises ConfigError when the file is missing, unreadable, not YAML, or says something that cannot be.
    """
    path = _find(Path(source))
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: must be UTF-8 text, got byte {error.object[error.start]:#04x}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: must be YAML: {' '.join(str(error).split())}") from error
    try:
        return parse_config(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(document: object) -> RunConfig:
    """Build a RunConfig from the sections of a file; raises ConfigError with one sentence."""
    sections = {name: _mapping(part, name) for name, part in _mapping(document, "the file").items()}
    _refuse_unknown(sections, _SECTION_KEYS, "section ")
    for name, part in sections.items():
        _refuse_unknown(part, _SECTION_KEYS[name], f"key {name}.")
    data, nsa, model = (sections.get(name, {}) for name in ("data", "nsa", "model"))
    if "vocab_size" not in model:
        tokenizer = data.get("tokenizer", DataConfig().tokenizer)
        if tokenizer not in _VOCABULARY:
            raise ConfigError(f"model.vocab_size must be given for tokenizer {tokenizer!r}, got nothing")
        model = {**model, "vocab_size": _VOCABULARY[tokenizer]}
    rest = {name: part for name, part in sections.items() if name != "nsa"}
    try:
        return RunConfig.model_validate({**rest, "model": {**model, **nsa}})
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error


def builtin_configs() -> dict[str, Path]:
    """Configurations that ship with the package, by name."""
    package = Path(__file__).parent
    folder = next((place for place in (package / "configs", package.parent / "configs") if place.is_dir()), package)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


_VOCABULARY = {"byte": 256, "gpt2": 50_257}
_NSA_KEYS = frozenset(SparsityConfig.model_fields)
_SECTION_KEYS: Mapping[str, frozenset[str]] = {
    "model": frozenset(ModelConfig.model_fields) - _NSA_KEYS,
    "nsa": _NSA_KEYS,
    "data": frozenset(DataConfig.model_fields),
    "train": frozenset(TrainConfig.model_fields),
    "runtime": frozenset(RuntimeConfig.model_fields),
}


def _find(path: Path) -> Path:
    builtin = builtin_configs()
    if path.exists() or path.stem not in builtin or path.parent not in (Path(), Path("configs")):
        if not path.exists():
            raise ConfigError(f"{path}: no such file, and not one of the built-in {', '.join(builtin)}")
        return path
    return builtin[path.stem]


def _mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name} must be a mapping of keys to values, got {_shown(value)}")
    return value


def _refuse_unknown(given: Mapping[str, object], allowed: Iterable[str], prefix: str) -> None:
    for key, value in given.items():
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]}" if near else f"allowed are {', '.join(sorted(allowed))}"
            raise ConfigError(f"unknown {prefix}{key} (value {_shown(value)}): {hint}")


def _sentence(error: ValidationError) -> str:
    """The first problem as one sentence, in the file's own keys."""
    problem = error.errors()[0]
    location = [str(part) for part in problem["loc"]]
    if len(location) > 1 and location[0] == "model" and location[1] in _NSA_KEYS:
        location[0] = "nsa"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    key = ".".join(location)
    if problem["type"] == "missing":
        return f"{key} is missing: {ModelConfig.model_fields[location[-1]].description}" if location[1:] else f"section {key} is missing"
    return f"{key} {problem['msg'].replace('Input should', 'must', 1)}, got {_shown(problem['input'])}"


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice and reads 2e-4 as the number YAML 1.2 says it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
