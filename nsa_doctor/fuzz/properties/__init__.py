"""What must hold for each kind of case; the child process comes here, with torch."""
