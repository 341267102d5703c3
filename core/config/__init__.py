"""What is asked of a compile, what becomes of it, and why."""
