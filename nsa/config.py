"""Configuration: YAML files to frozen, strict models, with errors a person can act on.

A file has the sections `model`, `nsa`, `data`, `train` and `runtime`. `NSAConfig` is what one attention layer needs,
`ModelConfig` what a `Transformer` needs (the sections `model` and `nsa` together), `RunConfig` the whole file.
Built in Python or read from a file, what cannot be is one sentence that starts with the key.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveFloat, model_validator

from nsa.ops.geometry import Geometry
from nsa.plain_yaml import parse_plain_yaml, read_plain_yaml
from nsa.strict import ConfigError, Name, Strict, nearest, plain, shown

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


_VOCABULARY = {"byte": 256, "gpt2": 50_257}
_FILES = ("text", "jsonl", "parquet")
_DOCUMENTS = ("end_token", "shuffle_buffer", "heldout_every")
_USED_BY_DATASET: Mapping[str, tuple[str, ...]] = {
    "synthetic": (),
    "needle": (),
    "fineweb_edu": (*_DOCUMENTS, "text_field", "subset"),
    "text": (*_DOCUMENTS, "text_by"),
    "jsonl": (*_DOCUMENTS, "text_field"),
    "parquet": (*_DOCUMENTS, "text_field"),
}


class SparsityConfig(Strict):
    """The section `nsa`: which keys a query reads, and how the branches are mixed."""

    l: Size = Field(default=32, description="length of a compressed block, in tokens")  # noqa: E741
    d: Size = Field(default=16, description="stride between compressed blocks, in tokens")
    l_sel: Size = Field(default=64, description="length of a selection block, in tokens")
    n_sel: Size = Field(default=16, description="selection blocks per query, the 3 forced ones included")
    w: Size = Field(default=512, description="sliding window, in tokens, the query's own included")
    phi: Literal["avg", "mlp", "conv"] = Field(
        default="avg", description="how a block is compressed to one key and value"
    )
    gate: Literal["softmax", "sigmoid"] = Field(default="softmax", description="how gate logits become branch weights")
    gate_temperature: float = Field(default=1.0, ge=1e-6, description="divides the gate logits of a softmax gate")
    shared_kv: bool = Field(default=False, description="one key and value projection for all branches")

    @model_validator(mode="after")
    def _check_geometry(self) -> "SparsityConfig":
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

    dim: Size = Field(description="width of the residual stream")
    n_heads: Size = Field(description="query heads")
    n_kv_groups: Size = Field(description="key/value groups; each serves n_heads / n_kv_groups heads")
    d_k: Size = Field(description="size of a query and key head; even, for RoPE")
    d_v: Size = Field(description="size of a value head")
    rope_theta: PositiveFloat = Field(default=10_000.0, description="base of the rotary frequencies")
    branch: Literal["all", "cmp", "sel", "win"] = Field(
        default="all", description="all branches weighed by the gate, or one alone, to narrow a fault down"
    )

    @model_validator(mode="after")
    def _check_heads(self) -> "NSAConfig":
        if self.n_heads % self.n_kv_groups:
            raise ValueError(f"n_heads must be a multiple of n_kv_groups={self.n_kv_groups}, got {self.n_heads}")
        if self.d_k % 2:
            raise ValueError(f"d_k must be even for rotary embeddings, got {self.d_k}")
        return self


class ModelConfig(NSAConfig):
    """Everything a `Transformer` needs."""

    n_layers: Size = Field(default=1, description="transformer blocks")
    vocab_size: Size = Field(default=256, description="token ids; follows the tokenizer when the file does not say")
    mlp_dim: Size | None = Field(default=None, description="SwiGLU width; default 8/3 · dim, rounded up to 64")
    tie_embeddings: bool = Field(default=True, description="the output head shares the embedding's weight")
    norm_eps: float = Field(default=1e-5, ge=1e-12, description="added to the mean square in RMSNorm")


class DataConfig(Strict):
    """The section `data`. A field that the dataset or the tokenizer does not use must not be given."""

    dataset: Name = Field(
        default="synthetic", description="synthetic, needle, fineweb_edu, text:PATH, jsonl:PATH or parquet:PATH"
    )
    tokenizer: Name = Field(default="byte", description="byte, gpt2, or a tokenizers file")
    end_token: Name | None = Field(default=None, description="a tokenizers file's token that ends each document")
    text_field: Name | None = Field(default=None, description="field or column that holds the text; default text")
    text_by: Literal["line", "paragraph", "file"] | None = Field(
        default=None, description="what is one document of text:PATH; default paragraph: blank lines part them"
    )
    subset: Name | None = Field(default=None, description="a part of fineweb_edu, such as sample-10BT; default all")
    shuffle_buffer: Count = Field(
        default=0, description="documents shuffled among themselves; 0 for the order they lie in"
    )
    heldout_every: Annotated[int, Field(ge=2, le=2**31 - 1)] = Field(
        default=20, description="one document in so many is held out, chosen by its text"
    )
    limit_seconds: PositiveFloat = Field(default=120.0, description="longest wait for a batch")

    @model_validator(mode="after")
    def _check_dataset(self) -> "DataConfig":
        if self.kind not in _USED_BY_DATASET or bool(self.path) != (self.kind in _FILES):
            allowed = type(self).model_fields["dataset"].description
            raise ValueError(f"dataset must be {allowed}, got {shown(self.dataset)}")
        for name, field in type(self).model_fields.items():
            is_optional = any(name in names for names in _USED_BY_DATASET.values())
            if is_optional and name not in _USED_BY_DATASET[self.kind] and getattr(self, name) != field.default:
                raise ValueError(f"{name} has no effect with dataset {plain(self.dataset)}: leave it out")
        if self.end_token is not None and self.tokenizer in _VOCABULARY:
            raise ValueError(f"end_token must be left out with tokenizer {self.tokenizer}: it is for a tokenizers file")
        return self

    @property
    def kind(self) -> str:
        """The dataset's name, without its path."""
        return self.dataset.partition(":")[0]

    @property
    def path(self) -> str:
        """What follows the kind of local files; empty for the others."""
        return self.dataset.partition(":")[2]


class TrainConfig(Strict):
    """The section `train`."""

    steps: Size = Field(default=200, description="optimizer steps")
    seq_len: Size = Field(default=128, description="tokens per row")
    batch_size: Size = Field(default=8, description="rows per micro-batch")
    lr: PositiveFloat = Field(default=3e-4, description="peak learning rate")
    lr_schedule: Literal["cosine", "constant"] = Field(default="cosine", description="shape after warm-up")
    lr_floor: float = Field(default=0.0, ge=0, description="learning rate of a cosine's last step")
    warmup_steps: Count = Field(default=0, description="steps of linear warm-up")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's decoupled decay, of matrices alone")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the mean squared gradient")
    grad_clip: float = Field(default=0.0, ge=0, description="largest gradient norm; 0 leaves it alone")
    accumulate_grad_batches: Size = Field(default=1, description="micro-batches per optimizer step")
    log_every: Size = Field(default=20, description="steps between log lines")
    eval_every: Count = Field(default=0, description="steps between evaluations; 0 for the first and last alone")
    eval_batches: Count = Field(default=8, description="held-out micro-batches per evaluation; 0 for no evaluation")
    sample_tokens: Count = Field(default=64, description="tokens written as a sample at each evaluation; 0 for none")
    save_every: Count = Field(default=0, description="steps between checkpoints; 0 for the last alone")
    keep_last: Size = Field(default=3, description="checkpoints kept")
    on_nonfinite: Literal["stop", "trace", "skip"] = Field(
        default="stop", description="a loss or gradient that is not finite stops, is traced first, or is left out"
    )
    watchdog_seconds: PositiveFloat = Field(default=180.0, description="a step or a batch slower than this is dumped")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=1337, description="seed of weights and data order")
    out_dir: Name = Field(default="artifacts", description="where a run writes")

    @model_validator(mode="after")
    def _check_schedule(self) -> "TrainConfig":
        if self.lr_floor > self.lr:
            raise ValueError(f"lr_floor must be at most lr={self.lr}, got {self.lr_floor}")
        if self.lr_floor and self.lr_schedule == "constant":
            raise ValueError(f"lr_floor must be 0 with a constant schedule, got {self.lr_floor}")
        if self.eval_every and not self.eval_batches:
            raise ValueError(f"eval_every must be 0 without eval_batches, got {self.eval_every}")
        return self


class RuntimeConfig(Strict):
    """The section `runtime`."""

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU when there is one")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="dtype of activations")
    use_flash: bool = Field(default=False, description="ask for flash-attn; refused where it cannot serve")
    use_triton_sel: bool = Field(
        default=False, description="ask for the Triton kernel of the selected branch; refused where it cannot serve"
    )
    compile: bool = Field(default=False, description="compile each block with torch.compile")
    activation_checkpointing: bool = Field(default=False, description="recompute a block's inside in the backward pass")
    distributed: Literal["ddp", "fsdp2", "none"] = Field(
        default="ddp", description="how the processes of torchrun share a step; without torchrun there is one"
    )
    context_parallel: Size = Field(
        default=1, description="processes that share each row of tokens; divides the number of processes"
    )
    compare_ranks_every: Count = Field(
        default=100, description="steps between comparisons of the parameters of all processes; 0 for none"
    )
    monitors: bool = Field(default=True, description="heartbeat, tables, gates, watchdog, samples and plot")

    @model_validator(mode="after")
    def _check_kernels(self) -> "RuntimeConfig":
        for name, kernel in (("use_flash", "flash-attn"), ("use_triton_sel", "the Triton kernel")):
            if not getattr(self, name):
                continue
            if self.device == "cpu":
                raise ValueError(f"{name} must be false on device cpu, got True")
            if self.precision == "fp32":
                raise ValueError(f"{name} must be false in precision fp32 ({kernel} serves bf16 and fp16), got True")
        return self


class RunConfig(Strict):
    """One configuration file."""

    model: ModelConfig = Field(description="the sections model and nsa together")
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def load_config(source: str | Path) -> RunConfig:
    """Read a YAML file, or a built-in configuration by name (`m7c_125m_fast_log`, `train_showcase`).

    Raises ConfigError when the file is missing, unreadable, not YAML, or says something that cannot be.
    """
    path = _find(Path(source))
    try:
        return parse_config(read_plain_yaml(path))
    except ValueError as error:
        raise ConfigError(f"{plain(str(path))}: {error}") from None


def parse_config(document: object) -> RunConfig:
    """Build a RunConfig from the sections of a file; raises ConfigError with one sentence."""
    given = _mapping(document, "the file")
    _refuse_unknown(given, _SECTION_KEYS, "section ")
    sections = {name: _mapping(part, f"section {name}") for name, part in given.items()}
    for name, part in sections.items():
        _refuse_unknown(part, _SECTION_KEYS[name], "key ", f"{name}.")
    if "model" not in sections:
        raise ConfigError(f"section model is missing: it must give {', '.join(_required(ModelConfig))}")
    data = _build(DataConfig, sections.get("data", {}), "data")
    model = sections["model"]
    if "vocab_size" not in model:
        if data.tokenizer not in _VOCABULARY:
            raise ConfigError(f"model.vocab_size is missing: it must be given with tokenizer {shown(data.tokenizer)}")
        model = {**model, "vocab_size": _VOCABULARY[data.tokenizer]}
    built = _build(ModelConfig, {**model, **sections.get("nsa", {})}, "model")
    needed = _VOCABULARY.get(data.tokenizer, 0) if "tokenizer" in data.model_fields_set else 0
    if built.vocab_size < needed:
        raise ConfigError(
            f"model.vocab_size must be at least {needed} for tokenizer {data.tokenizer}, got {built.vocab_size}"
        )
    return RunConfig(
        model=built,
        data=data,
        train=_build(TrainConfig, sections.get("train", {}), "train"),
        runtime=_build(RuntimeConfig, sections.get("runtime", {}), "runtime"),
    )


def with_changes(config: RunConfig, changes: Iterable[str]) -> RunConfig:
    """The configuration with each `section.key=value` in its place, the value read as in a file.

    Raises ConfigError with one sentence.
    """
    document = as_document(config)
    for change in changes:
        place, equals, text = change.partition("=")
        section, dot, key = place.partition(".")
        if not (equals and dot):
            raise ConfigError(f"a change must read section.key=value, got {shown(change)}")
        try:
            value = parse_plain_yaml(text)
        except ValueError as error:
            raise ConfigError(f"{plain(place)}: {error}") from None
        document.setdefault(section, {})[key] = value
    return parse_config(document)


def as_document(config: RunConfig) -> dict[str, Any]:
    """The sections of a file that says what this one does; `parse_config` reads them."""
    document = config.model_dump(exclude_unset=True)
    document["nsa"] = {key: document["model"].pop(key) for key in sorted(_NSA_KEYS & document["model"].keys())}
    return document


def builtin_configs() -> dict[str, Path]:
    """Configurations that ship with the package, by name."""
    package = Path(__file__).parent
    folder = next((place for place in (package / "configs", package.parent / "configs") if place.is_dir()), package)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


_NSA_KEYS = frozenset(SparsityConfig.model_fields)
_SECTION_KEYS: Mapping[str, frozenset[str]] = {
    "model": frozenset(ModelConfig.model_fields) - _NSA_KEYS,
    "nsa": _NSA_KEYS,
    "data": frozenset(DataConfig.model_fields),
    "train": frozenset(TrainConfig.model_fields),
    "runtime": frozenset(RuntimeConfig.model_fields),
}
_Section = TypeVar("_Section", bound=Strict)


def _find(path: Path) -> Path:
    builtin = builtin_configs()
    is_name = path.parent == Path() and not path.suffix
    if is_name and path.name in builtin:
        return builtin[path.name]
    try:
        exists = path.exists()
    except OSError as error:  # too long a name, or a folder that may not be entered
        raise ConfigError(f"{plain(str(path))}: cannot be read: {error.strerror}") from None
    if exists:
        return path
    if path.stem in builtin and path.suffix == ".yaml" and path.parent in (Path(), Path("configs")):
        return builtin[path.stem]  # `configs/NAME.yaml` also works away from a checkout
    raise ConfigError(f"{plain(str(path))}: no such file, and not one of the built-in {', '.join(builtin)}")


def _mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a mapping of keys to values, got {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(f"{name} must have text as keys, got {shown(key)}")
    return value


def _refuse_unknown(given: Mapping[str, object], allowed: Iterable[str], kind: str, prefix: str = "") -> None:
    for key, value in given.items():
        if key not in allowed:
            raise ConfigError(f"unknown {kind}{prefix}{plain(key)} (value {shown(value)}): {nearest(key, allowed)}")


def _build(kind: type[_Section], values: Mapping[str, Any], section: str) -> _Section:
    """The model of one section; its ConfigError starts with the key, which gets the section in front."""
    try:
        return kind(**values)
    except ConfigError as error:
        key = str(error).split(maxsplit=1)[0]
        is_nsa = section == "model" and key in _NSA_KEYS
        raise ConfigError(f"{'nsa' if is_nsa else section}.{error}") from None


def _required(kind: type[BaseModel]) -> list[str]:
    return [name for name, field in kind.model_fields.items() if field.is_required()]
