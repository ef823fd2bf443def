"""Calls that do not return, or that return too late or in too much memory."""
