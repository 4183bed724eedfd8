"""Decisions: state and `now` in, what is to be done out. No asyncio, no threads, no clock, no files in this room, by test."""
