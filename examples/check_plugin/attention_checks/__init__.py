"""Checks of ours for nsa-doctor."""
