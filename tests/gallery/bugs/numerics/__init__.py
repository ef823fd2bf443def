"""Overflow, cancellation, division by nothing: what is right on paper and not in floating point."""
