"""The compressed branch: blocks summarised to one key and value each, and attention over them."""
