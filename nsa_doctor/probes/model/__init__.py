"""Builds, calls and trains a subject on comparable terms."""
