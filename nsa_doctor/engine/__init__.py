"""Plans an examination, runs it over child processes, and concludes: sweep, checks, root causes, throughput."""
