"""What a person types. Never imports torch, and `graphkiln.core` only inside the commands that need it."""
