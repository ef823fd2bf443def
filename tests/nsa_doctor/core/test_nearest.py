"""A word that is not allowed is answered with what it may have meant, and with no word that it does not resemble."""

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.check import PROFILES
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.measurement import DTYPES, VALUES
from nsa_doctor.core.nearest import _OTHER_NAMES, nearest
from nsa_doctor.render.formats import FORMATS

DEVICES = ("cpu", "cuda")
MEANT = {
    DEVICES: {"gpu": "cuda", "GPU": "cuda", "CUDA": "cuda", "cuda:0": "cuda", "nvidia": "cuda", "cud": "cuda"}
    | {"cup": "cpu", "CPU": "cpu", " cpu": "cpu"},
    DTYPES: {"fp32": "float32", "float": "float32", "torch.float16": "float16", "half": "float16", "bf16": "bfloat16"}
    | {"double": "float64", "float_16": "float16", "bfloat": "bfloat16", "flaot64": "float64"},
    PROFILES: {"quik": "quick", "ful": "full", "smok": "smoke", "fast": "smoke", "all": "full"},
    VALUES: {"huge": "huge_token", "zero": "zeros", "random": "normal", "larg": "large"},
    ("embeddings", "tokens"): {"embedding": "embeddings", "token": "tokens", "ids": "tokens"},
    tuple(Declaration): {"encoder": "bidirectional", "bidi": "bidirectional", "non-causal": "bidirectional"},
    tuple(FORMATS): {"text": "terminal", "markdown": "md", "xml": "junit", "htm": "html", "JSON": "json"},
}
OTHERS = {
    DEVICES: ("tpu", "npu", "xpu", "mps", "rocm", "", "c"),
    DTYPES: ("int8", "float8", "e4m3", "float128"),
    PROFILES: ("normal", "default"),
    VALUES: ("uniform", "ones", "hot"),
    tuple(FORMATS): ("pdf", "yaml", "svg"),
}


@pytest.mark.parametrize(
    ("word", "allowed", "meant"),
    [(word, kind, meant) for kind, words in MEANT.items() for word, meant in words.items()],
)
def test_what_was_meant_is_suggested(word: str, allowed: tuple[str, ...], meant: str) -> None:
    assert nearest(word, allowed) == f"did you mean {meant}"


@pytest.mark.parametrize(("word", "allowed"), [(word, kind) for kind, words in OTHERS.items() for word in words])
def test_where_nothing_suggests_itself_all_are_named(word: str, allowed: tuple[str, ...]) -> None:
    assert nearest(word, allowed) == f"allowed are {', '.join(allowed)}"


def test_other_names_are_of_words_that_options_have() -> None:
    assert set(_OTHER_NAMES.values()) <= {word for kind in MEANT for word in kind}
    assert not set(_OTHER_NAMES) & {word for kind in MEANT for word in kind}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "--device", "gpu"], "--device cannot be 'gpu': did you mean cuda"),
        (["sweep", "--dtype", "fp16,half"], "--dtype cannot be 'fp16': did you mean float16"),
        (["gate-stats", "x", "--activation", "softmx"], "--activation cannot be 'softmx': did you mean softmax"),
        (["data", "--subject", "a:b", "--targets", "nxt"], "--targets cannot be 'nxt': did you mean next"),
        (["fuzz", "range"], "a target cannot be 'range': did you mean ranges"),
    ],
)
def test_options_suggest_what_was_meant(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(words) == 2
    assert capsys.readouterr().err == f"nsa-doctor: {complaint}\n"
