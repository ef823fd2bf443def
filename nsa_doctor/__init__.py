"""The doctor: examines sparse-attention code and says what is wrong, where, and what to do about it."""
