"""The selected branch: which blocks a query reads, and attention over their tokens."""
