"""Regression cases: find them, run each in a process of its own, and tell how they end."""
