"""The model type `nsa` among those that the Auto classes of transformers know."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from nsa.hf.configuration import NSAConfig
from nsa.hf.modeling import NSAForCausalLM, NSAModel


def register() -> None:
    """Have AutoConfig, AutoModel and AutoModelForCausalLM build and load models of type `nsa`; again is no error."""
    AutoConfig.register(NSAConfig.model_type, NSAConfig, exist_ok=True)
    AutoModel.register(NSAConfig, NSAModel, exist_ok=True)
    AutoModelForCausalLM.register(NSAConfig, NSAForCausalLM, exist_ok=True)
