"""One file a command group: what a person types, handed to `core` or `cache`, and shown."""
