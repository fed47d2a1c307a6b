"""Open and decode untrusted files: regular files only, with work bounded by their size."""
