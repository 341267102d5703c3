"""From one traced graph to sealed pieces: split, deduplicate, compile, seal, wire and run."""
