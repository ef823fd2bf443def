"""The names of the conventions by which functions are called."""

CONVENTIONS = ("sdpa", "flash", "flash_varlen", "flash_kvcache", "flex", "hf", "nsa", "native")
FUNCTION = "fn:"
