"""NAN: values that are not finite."""
