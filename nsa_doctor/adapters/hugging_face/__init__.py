"""Models of the installed transformers, by their type or by a configuration file, as subjects."""
