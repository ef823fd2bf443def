from transformers import KINDS as CONFIG_MAPPING

__all__ = ["CONFIG_MAPPING"]
