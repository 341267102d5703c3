"""One Dynamo trace of a decorated module, and everything that the trace took for granted, as data."""
