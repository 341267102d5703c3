"""What is known about a cache and what can be done with it: plain functions from data to data."""
