"""Runs, checkpoints and batches made for injected bugs."""
