"""Decisions: state and `now` in, what is to be done out. No asyncio, no threads, no clock in this room, by test."""
