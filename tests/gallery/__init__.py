"""What the doctor is scored on: planted bugs in foreign models, and healthy models that look odd; `make recall`."""
