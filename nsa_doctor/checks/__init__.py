"""Checks: one file each, one folder per family."""
