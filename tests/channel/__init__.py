"""Channels: between a driver and workers, on one node and on two."""
