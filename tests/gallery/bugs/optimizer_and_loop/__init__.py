"""Losses and training loops that learn the wrong thing or nothing, and steps that leave something behind."""
