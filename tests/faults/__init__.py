"""Random programs of calls, messages, channels and faults over a real client, daemon and two workers."""
