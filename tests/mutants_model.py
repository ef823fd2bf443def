"""The language model that `make mutants` examines: two layers, an untied head, blocks compressed by convolution."""

from nsa.config import ModelConfig
from nsa_doctor.adapters.nsa_model import model_subject
from nsa_doctor.subject.contract import Subject


def model() -> Subject:
    sizes = {"dim": 32, "n_heads": 4, "n_kv_groups": 2, "d_k": 8, "d_v": 8, "vocab_size": 29, "tie_embeddings": False}
    return model_subject(ModelConfig(**sizes, l=8, d=4, l_sel=8, n_sel=3, w=12, phi="conv"))
