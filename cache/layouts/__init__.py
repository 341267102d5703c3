"""Readers of what other programs keep on disk: vLLM's compile cache, Inductor's and Triton's own folders.

Nothing here is ours: it is read where it lies, never written to, and nothing in it is executed. A pickle
is only ever looked into by a reader that resolves no class and calls nothing.
"""
