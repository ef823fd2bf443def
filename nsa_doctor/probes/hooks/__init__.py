"""Watches a pass from outside: operations, lines, saved tensors, memory."""
