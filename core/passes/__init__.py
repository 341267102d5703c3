"""Our own passes over the graphs that Inductor lowers, in one fixed order."""
