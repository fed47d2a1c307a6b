"""Where units of work run: in this process, in others on this machine, on a cluster."""
