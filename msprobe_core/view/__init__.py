"""View one run, or two and where they diverge: as one page, and as files for other viewers."""
