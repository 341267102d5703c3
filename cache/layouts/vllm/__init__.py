"""The compile cache of vLLM as it lies on disk, read without vLLM and without torch.

The shapes are those that vLLM 0.32 with torch 2.13 writes; another shape is refused with what was seen.
"""
