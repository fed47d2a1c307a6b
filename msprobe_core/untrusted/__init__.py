"""Open and decode files that anybody may have written: plain files only, and no more work than their size allows."""
