"""The names of the conventions by which functions are called, and the words before a subject that is no factory."""

CONVENTIONS = ("sdpa", "flash", "flash_varlen", "flash_kvcache", "flex", "hf", "nsa", "native")
FUNCTION = "fn:"
HUGGING_FACE, LIBRARY = "hf:", "transformers"
