"""Instruments for attention functions: the truth in float64, how far one may be from it, which keys are read."""
