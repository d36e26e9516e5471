"""A local page on which one trains agents, listens in on them, and sees what each listener gets."""
