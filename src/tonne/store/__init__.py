"""The node's disk: stored frames, and the records of what is there."""
