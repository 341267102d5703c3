"""CUDA graphs: which are captured, which one serves a step, what they cost and whether they pay."""
