"""Checkpoints, hostile until read: what a file is, what is in it, and its gates; nothing a file carries is executed."""
