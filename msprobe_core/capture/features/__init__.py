"""What takes part in recording beside the recorder."""
