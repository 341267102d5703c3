"""What code is compiled for: descriptions of devices."""
