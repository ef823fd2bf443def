from transformers import KINDS

MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = dict.fromkeys(KINDS, "TinyForCausalLM")
