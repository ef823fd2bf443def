"""Gradients that are cut, scaled or computed from overwritten values, and parameters that nobody trains."""
