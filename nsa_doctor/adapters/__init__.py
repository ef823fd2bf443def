"""From a module, a function or nsa itself to a Subject."""
