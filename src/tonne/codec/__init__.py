"""Frames to content and back, pure."""
