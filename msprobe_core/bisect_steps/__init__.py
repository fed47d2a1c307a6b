"""At which step of a long training the first fault is: by its checkpoints, then by windows of replayed steps."""
