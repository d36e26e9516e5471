"""Files that are never half written, tensors without pickle, and progress on long work."""
