"""Instruments: they measure and return, and never judge."""
