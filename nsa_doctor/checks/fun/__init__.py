"""Checks of attention functions."""
