"""The command line: what a user typed becomes a request, and what came of it text and an exit code."""
