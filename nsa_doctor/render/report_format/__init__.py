"""What a report holds, as pydantic models: its JSON Schema is made of them, and a report is read by them."""
