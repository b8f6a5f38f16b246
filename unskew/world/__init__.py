"""The world around the methods: lost replies, and the radio channel."""
