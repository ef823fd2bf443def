"""Mutation testing of a subject's own source: which share of small changes to it the policy notices."""
