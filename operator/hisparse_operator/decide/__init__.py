"""What should be: pure functions from a World and a time to an Outcome. No I/O, no clock, no framework."""
