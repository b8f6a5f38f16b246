"""What a run will cost, before it is run: seconds, bytes and memory."""
