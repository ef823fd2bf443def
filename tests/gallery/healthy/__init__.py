"""Odd but healthy models, one a file: none may raise an alarm."""
