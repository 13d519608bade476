"""Adapters that show a view to the kernel."""
