"""Gradients of many replicas of a module at once."""
