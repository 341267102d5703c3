"""How things are shown: plain functions from data to lines of text. Nothing here writes or decides."""
