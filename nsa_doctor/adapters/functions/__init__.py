"""Calling conventions: how attention functions of each kind are called, one file each."""
