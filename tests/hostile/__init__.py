"""Checkpoints that are hostile, broken or odd, made afresh: `python -m tests.hostile` reads all as a user would."""
