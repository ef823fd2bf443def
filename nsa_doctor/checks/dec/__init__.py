"""DEC: decoding with caches."""
