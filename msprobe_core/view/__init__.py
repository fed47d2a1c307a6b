"""Look at a run, or at two and where they part: one page, and files for other viewers."""
