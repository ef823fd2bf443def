"""The operators of Native Sparse Attention: an oracle and a fast path for each branch."""
