"""What a recorded run costs in a radio cell."""
